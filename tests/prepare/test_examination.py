"""Examples are told apart by their pixels, and what cannot be used is named."""

import importlib
import io
import json
import random
import sys

import numpy as np
import pytest
from PIL import Image
from raw_pairs import draw_image, encode, write_parquet

from big_align.data.examples import BrokenExample, Example
from big_align.data.loading.broken import name_kind
from big_align.prepare import text_rules
from big_align.prepare.examination import (
    EMPTIED,
    Examination,
    encode_member,
    examine_example,
    examine_stretch,
    identify_image,
)
from big_align.prepare.inputs import Stretch, find_inputs, list_stretches, sample_stretches
from big_align.prepare.page import _choose_edges
from big_align.prepare.steps import read_kept

PIXELS = np.random.default_rng(0).integers(0, 255, (30, 40, 3)).astype(np.uint8)


def test_an_image_is_its_pixels_and_not_its_file():
    png, webp = encode(PIXELS), encode(PIXELS, "WEBP", lossless=True)
    assert png != webp and identify_image(png)[0] == identify_image(webp)[0]
    assert identify_image(png)[0] == identify_image(PIXELS)[0]
    assert identify_image(png)[0] != identify_image(encode(PIXELS, "JPEG"))[0]
    flat = np.zeros((20, 30, 3), np.uint8)  # as many bytes in another shape
    assert identify_image(flat)[0] != identify_image(flat.reshape(30, 20, 3))[0]


def test_an_image_lies_as_its_orientation_says():
    file = io.BytesIO()
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(PIXELS).save(file, "PNG", exif=exif)
    turned = np.rot90(PIXELS, -1)
    identity, pixels = identify_image(file.getvalue())
    assert np.array_equal(pixels, turned)
    assert identity == identify_image(encode(np.ascontiguousarray(turned)))[0]


def test_what_shards_do_not_hold_is_stored_without_loss():
    ppm = encode(PIXELS, "PPM")
    assert encode_member(ppm)[1] == "png"
    assert identify_image(encode_member(ppm)[0])[0] == identify_image(ppm)[0]
    assert identify_image(encode_member(PIXELS)[0])[0] == identify_image(PIXELS)[0]
    jpeg = encode(PIXELS, "JPEG")
    assert encode_member(jpeg) == (jpeg, "jpg")


def test_a_text_that_is_a_whole_file_is_refused():
    example = Example("a", encode(PIXELS), ["x" * (2**20 + 1)], ())
    with pytest.raises(BrokenExample, match="a text has 1048577 characters"):
        examine_example(example, Examination())


def test_a_text_of_nothing_but_markup_is_noted_and_the_others_stay(tmp_path):
    texts = [["a dog", "<b></b>", "dog"], ["&nbsp;"], ["<i> </i>", "<p></p>"], ["a cat"]]
    images = [encode(PIXELS[n:]) for n in range(4)]
    inputs = find_inputs(write_parquet(tmp_path, list(zip(images, texts, strict=True)), files=1))
    facts, broken = examine_stretch(inputs, Stretch(0, 0, 4), Examination())
    assert [(each["row"], each["texts"]) for each in facts] == [
        (0, ["a dog", "dog"]),
        (3, ["a cat"]),
    ]
    assert [each["row"] for each in broken] == [0, 1, 2, 2]
    assert {(each["reason"], each["count"]) for each in broken} == {(EMPTIED, 1)}
    facts, broken = examine_stretch(inputs, Stretch(0, 0, 4), Examination(normalize=False))
    assert [each["texts"] for each in facts] == texts and not broken


def test_reasons_of_a_kind_keep_their_words():
    reason = "it is not UTF-8: byte 0xff at 17; img2dataset has 3 columns (row 12)"
    wanted = "it is not UTF-8: byte ... at N; img2dataset has N columns (row N)"
    assert name_kind(reason) == wanted
    long = name_kind("word " * 60)
    assert len(long) <= 160 and long.endswith(" word ...")


def test_reasons_of_a_kind_are_counted_together():
    one, two = "row 3 of 'a.png' has 12 bytes", "row 14 of 'b c.png' has 7 bytes"
    assert name_kind(one) == name_kind(two) == "row N of ... has N bytes"


def mutate(draw, image, text):
    """Spoils the image or the text of a pair, or leaves it as it is."""
    at = draw.randrange(len(image))
    kind = draw.randrange(8)
    if kind == 0:
        return image[:at], text
    if kind == 1:
        return image[:at] + bytes([draw.randrange(256)]) + image[at + 1 :], text
    if kind == 2:
        return draw.randbytes(draw.randrange(400)), text
    if kind == 3:
        return image, draw.choice(["", " ", "\x00", "\u200b", "[]", "{}", '["a", 3]', "[" * 3000])
    if kind == 4:
        return image, "".join(chr(draw.randrange(1, 0xD000)) for _ in range(30))
    if kind == 5:
        return b"", text
    if kind == 6:  # a bomb: it claims to have more pixels than any image
        size = draw.choice([2**31 - 1, 2**16]).to_bytes(4, "big")
        return image[:16] + size + size + image[24:], text
    return image, text * draw.choice([1, 500, 50_000])


def test_mutated_records_are_examined_or_quarantined_and_none_is_lost(tmp_path):
    draw = random.Random(0)
    rows = [mutate(draw, draw_image(2 * n, 60, 50), f"a red dog {n}") for n in range(300)]
    inputs = find_inputs(write_parquet(tmp_path, rows, files=2, group=7))
    facts, broken = [], []
    for file in range(2):
        for stretch in list_stretches(file, 150, chunk=64):
            found, lost = examine_stretch(inputs, stretch, Examination())
            facts += [(file, each["row"]) for each in found]
            broken += [(file, each["row"]) for each in lost]
            assert all("\n" not in each["reason"] and len(each["reason"]) > 8 for each in lost)
    assert sorted(facts + broken) == [(file, row) for file in range(2) for row in range(150)]
    assert len(broken) > 100 and len(facts) > 80
    intact = [n for n, (image, _) in enumerate(rows) if image == draw_image(2 * n, 60, 50)]
    odd = {divmod(n, 150) for n in intact if "red dog" in rows[n][1] and len(rows[n][1]) < 2**20}
    assert odd and odd <= set(facts)


def test_stretches_of_a_sample_are_some_of_the_file():
    for count, wanted in ((1000, 100), (10, 100), (99, 98), (5000, 17)):
        rows = [n for s in sample_stretches(3, count, wanted, 0) for n in range(s.start, s.stop)]
        assert rows == sorted(set(rows)) and set(rows) <= set(range(count))
        assert min(wanted, count) * 0.8 <= len(rows) <= wanted + 16 or wanted >= count
    first, other = (sample_stretches(3, 5000, 100, seed) for seed in (0, 1))
    assert first == sample_stretches(3, 5000, 100, 0) and first != other
    assert Stretch(1, 20, 30).name < Stretch(1, 100, 200).name < Stretch(2, 0, 9).name


def test_keys_tell_files_of_the_same_name_apart(tmp_path):
    for name in ("a/0.part.parquet", "b/0.part.parquet", "b/0_part.parquet"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    inputs = find_inputs(f"{tmp_path}/*/*.parquet")
    assert len(set(inputs.stems)) == 3 and inputs.stems[:2] == ("a_0_part", "b_0_part")
    assert not any("." in stem or "/" in stem for stem in inputs.stems)
    assert text_rules.identify_text("a") != text_rules.identify_text("b")


def test_another_version_of_a_function_is_another_examination(tmp_path, monkeypatch):
    """So what it has judged is not used again; one without functions is as it always was."""
    monkeypatch.syspath_prepend(tmp_path)
    found = []
    for judged in ("None", "'bad'", "None"):
        lines = "import functools", "@functools.cache", "def judge(image):", f"    return {judged}"
        (tmp_path / "judging.py").write_text("\n".join(lines))
        sys.modules.pop("judging", None)
        importlib.invalidate_caches()
        found.append(Examination(classifier="judging:judge").sources)
    assert found[0] == found[2] != found[1] and found[0].keys() == {"classifier"}
    assert Examination().sources == {}
    assert Examination(languages="builtins:len").sources == {"languages": ""}


def test_other_columns_are_kept_as_json_holds_them():
    class Table:
        def read_columns(self, shard, index, names):
            return [["a", 1, None], {"w": 1.5, 2: (b"x",)}, float("nan"), float("inf"), True, b"y"]

    kept = read_kept(Table(), (0, 0), tuple("abcdef"))
    assert kept == {
        "a": ["a", 1, None],
        "b": {"w": 1.5, "2": ["b'x'"]},
        "c": None,
        "d": None,
        "e": True,
        "f": "b'y'",
    }
    assert json.loads(json.dumps(kept, allow_nan=False)) == kept


def test_a_rule_far_from_all_data_leaves_a_histogram():
    for least in (0, 10**13, 10**30):
        edges = _choose_edges({3: 5, 40: 2}, least, log=False)
        assert edges[0] == 0 and 40 < edges[-1] < 1000


@pytest.mark.parametrize("said", [("en", 0.9), ["en"], 0.9, True, b"en", {"lang": "en"}])
def test_what_a_function_of_the_user_returns_is_a_text_or_nothing(said):
    example = Example("0", PIXELS, ["a dog", "a cat"], ())
    for functions in ({"classifier": lambda _: said}, {"languages": lambda _: said}):
        with pytest.raises(BrokenExample, match=f"--{[*functions][0]} returns .* is no text"):
            examine_example(example, Examination(), **functions)
    found = examine_example(example, Examination(), lambda _: None, lambda text: None)
    assert (found["flag"], found["languages"]) == ("", ["", ""])
    odd = examine_example(example, Examination(), lambda _: "a\nb", lambda text: "\ud800")
    assert (odd["flag"], odd["languages"]) == ("a b", ["\\ud800"] * 2)
