"""What a workdir keeps of the files that its model needs."""

import fsspec
import pytest
from ml_collections import ConfigDict

from big_align.config import kept_files
from big_align.core.errors import UserError


def test_a_vocabulary_in_a_bucket_is_copied_and_found(tmp_path):
    path = "memory://kept/vocabulary.txt"
    fsspec.filesystem("memory").pipe("/kept/vocabulary.txt", b"[PAD]\na\n")
    tokenizer = {"name": "wordpiece", "vocabulary": path, "length": 8}
    config = ConfigDict({"tokenizer": tokenizer, "data": {"classes": None, "tags": {}}})
    kept_files.check_vocabulary(tmp_path, config)  # an earlier workdir has no copy
    kept_files.keep_files(str(tmp_path), config, {})
    kept_files.use_kept_files(tmp_path, config)
    copy = tmp_path / "files/tokenizer.vocabulary.txt"
    assert config.tokenizer.vocabulary == str(copy)
    assert copy.read_bytes() == b"[PAD]\na\n"


def test_a_vocabulary_of_a_tokenizer_that_is_not_ours_need_not_be_a_file(tmp_path):
    tokenizer = {"name": "own:Letters", "vocabulary": "latin", "length": 8}
    config = ConfigDict({"tokenizer": tokenizer, "data": {"classes": None, "tags": {}}})
    kept_files.check_vocabulary(tmp_path, config)
    config.tokenizer.name = "wordpiece"
    with pytest.raises(UserError, match="config.tokenizer.vocabulary: there is no file latin"):
        kept_files.check_vocabulary(tmp_path, config)
