"""A folder's tokenizer is read if ours makes the same ids of texts, and left out otherwise."""

import json

import pytest

from big_align.weights.formats import text_files


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


def test_clip_with_other_ids_is_left_out(tmp_path, caplog, data_dir):
    """Its ids follow from its merges; a vocabulary beside them may say something else."""
    published = str(data_dir / "text" / "clip_bpe_simple_vocab_16e6.txt.gz")
    files = text_files.write({"name": "clip", "merges": published}, "clip_text_model")
    for name, content in files.items():
        text = content if isinstance(content, str) else json.dumps(content)
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert text_files.read(tmp_path, 77)["name"] == "clip" and not caplog.text
    ids = files["vocab.json"]
    (tmp_path / "vocab.json").write_text(json.dumps(ids | {"a": ids["b"], "b": ids["a"]}))
    assert text_files.read(tmp_path, 77) is None
    assert "its tokenizer is left out: vocabulary: " in caplog.text
