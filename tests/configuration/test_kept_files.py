"""What a workdir keeps of the files that its model needs."""

import fsspec
from ml_collections import ConfigDict

from big_align.configuration import kept_files


def test_a_vocabulary_in_a_bucket_is_copied_and_found(tmp_path):
    path = "memory://kept/vocabulary.txt"
    fsspec.filesystem("memory").pipe("/kept/vocabulary.txt", b"[PAD]\na\n")
    tokenizer = {"name": "wordpiece", "vocabulary": path, "length": 8}
    config = ConfigDict({"tokenizer": tokenizer, "data": {"classes": None, "tags": {}}})
    kept_files.check_vocabulary(tmp_path, config)  # an earlier workdir has no copy
    kept_files.keep_files(str(tmp_path), config)
    kept_files.use_kept_files(tmp_path, config)
    copy = tmp_path / "files/tokenizer.vocabulary.txt"
    assert config.tokenizer.vocabulary == str(copy)
    assert copy.read_bytes() == b"[PAD]\na\n"
