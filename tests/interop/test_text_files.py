"""A folder's tokenizer is read if ours makes the same ids of texts, and left out otherwise."""

import json

import pytest

from big_align.interop.formats import text_files


@pytest.mark.parametrize(
    ("config", "normalizer", "setting"),
    [
        ({"do_lower_case": True, "strip_accents": None}, {}, None),
        ({"do_lower_case": True, "strip_accents": True}, {}, None),
        ({"do_lower_case": False}, {"strip_accents": None, "handle_chinese_chars": True}, None),
        ({"do_lower_case": False, "strip_accents": False}, {}, None),
        ({"strip_accents": False}, {}, "strip_accents = False"),
        ({}, {"lowercase": False, "strip_accents": True}, "strip_accents = True"),
        ({"tokenize_chinese_chars": False}, {}, "tokenize_chinese_chars = False"),
        ({}, {"handle_chinese_chars": False}, "tokenize_chinese_chars = False"),
    ],
)
def test_another_way_to_split_texts_is_not_taken_for_ours(
    tmp_path, caplog, config, normalizer, setting
):
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    whole = {"model": {"type": "WordPiece"}, "normalizer": normalizer}
    (tmp_path / "tokenizer.json").write_text(json.dumps(whole))
    found = text_files.read(tmp_path, 64)
    assert (found is None) == (setting is not None)
    assert (setting or "") in caplog.text and bool(caplog.text) == (found is None)
