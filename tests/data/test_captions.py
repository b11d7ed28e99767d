"""What a caption may be written as, and what is no caption."""

import json
import re

import numpy as np
import pytest
from loaders import make_sampler
from samples import encode_image, make_members, make_pixels, write_tar

from big_align.config.components.signatures import make
from big_align.core.errors import ConfigError, UserError
from big_align.data.examples import BrokenExample, clean_captions
from big_align.data.sources.array_source import ArraySource
from big_align.data.sources.coco_source import CocoSource
from big_align.data.sources.file_pairs import FilePairsSource
from big_align.data.sources.folder_source import FolderSource
from big_align.data.sources.image_folder import read_image_folder
from big_align.data.sources.tar_source import TarSource
from big_align.data.text.tokenizers import WordTokenizer

SAMPLER = make_sampler(WordTokenizer(("a",), length=2))


@pytest.mark.parametrize(
    ("written", "captions"),
    [
        ('["a", "b"]', ["a", "b"]),
        ("['a', \"it's\"]", ["a", "it's"]),
        (' ["a", " "] ', ["a"]),
        ("[2019] a dog", ["[2019] a dog"]),
        ("[2019]", ["[2019]"]),
        ("[sic]", ["[sic]"]),
        ('["a", "b"] and more', ['["a", "b"] and more']),
        ("{smile}", ["{smile}"]),
        ("[" * 100_000 + "]" * 100_000, ["[" * 100_000 + "]" * 100_000]),
        ("[", ["["]),
        ("{[1]: 2}", ["{[1]: 2}"]),
        ("[" + "-" * 100_000 + "1]", ["[" + "-" * 100_000 + "1]"]),
        ("[" + "1+" * 100_000 + "1]", ["[" + "1+" * 100_000 + "1]"]),
    ],
)
def test_a_list_written_as_a_text_is_a_list_and_brackets_alone_are_text(written, captions):
    assert clean_captions(written) == captions


@pytest.mark.parametrize("kind", [object, str])
@pytest.mark.parametrize(
    "captions",
    [
        ["A dog runs.", "Brown dog.", "a cat"],
        ["it's", 'a "big" dog', "both ' and \"", "back\\slash", "two\nlines", "日本"],
        [f"number {n} of many captions" for n in range(30)],
        ["one", "two, three] [four"],
        ["alone"],
    ],
)
def test_an_array_written_as_a_text_is_its_captions(captions, kind):
    """As pandas writes a Parquet column of lists into a CSV, over several lines if it is long."""
    assert clean_captions(str(np.array(captions, kind))) == captions
    assert clean_captions(str(captions)) == clean_captions(json.dumps(captions)) == captions


@pytest.mark.parametrize("value", [{"en": "a", "de": "b"}, '{"en": "a", "de": ["b"]}'])
def test_a_dictionary_of_languages_is_never_a_list_of_its_keys(value, tmp_path):
    with pytest.raises(BrokenExample, match="keys en, de, not a text.*as in json.captions.en"):
        clean_captions(value)
    members = [*make_members(0)[:1], ("000000.json", json.dumps({"captions": value}).encode())]
    path = write_tar(tmp_path / "x.tar", members)
    with pytest.raises(UserError, match="none of 1 .*x.tar: 000000: the caption is a dict"):
        SAMPLER.check(TarSource(path, "json.captions"))
    assert TarSource(path, "json.captions.en").read_text(0, 0) == (["a"], ())
    assert TarSource(path, "json.captions.de").read_text(0, 0) == (["b"], ())


@pytest.mark.parametrize("value", ["", "[]", [], None, 3.0, True, ["a", 1.5], '["a", null]'])
def test_what_is_no_text_is_no_caption(value):
    with pytest.raises(BrokenExample, match="is empty|not a text or a list of texts"):
        clean_captions(value)


@pytest.mark.parametrize("value", [1984, [1984], "1984", ["1984"]])
def test_an_integer_is_the_text_of_its_digits(value, tmp_path):
    assert clean_captions(value) == ["1984"]
    members = [*make_members(0)[:1], ("000000.json", json.dumps({"title": value}).encode())]
    source = TarSource(write_tar(tmp_path / "x.tar", members), "json.title")
    assert source.read_text(0, 0) == (["1984"], ())
    (tmp_path / "a.png").write_bytes(members[0][1])
    path = tmp_path / "list.jsonl"
    path.write_text(json.dumps({"image": "a.png", "title": value}))
    assert read_image_folder(str(path)).read_text(0, 0) == (["1984"], ())


def test_a_null_is_called_so(tmp_path):
    members = [*make_members(0)[:1], ("000000.json", b'{"caption": null}')]
    source = TarSource(write_tar(tmp_path / "x.tar", members), "json.caption")
    with pytest.raises(BrokenExample, match="the caption is null, not a text or a list of texts"):
        source.read_text(0, 0)


def test_lines_are_captions_only_where_that_is_set(tmp_path):
    members = [*make_members(0)[:1], ("000000.txt", b"a dog\r\n\n a cat \n")]
    path = write_tar(tmp_path / "x.tar", members)
    assert TarSource(path).read_text(0, 0) == (["a dog\r\n\n a cat"], ())
    assert TarSource(path, caption_lines=True).read_text(0, 0) == (["a dog", "a cat"], ())


def test_a_folder_of_classes_used_for_captions_says_what_to_set(tmp_path):
    for name in ("ant", "bee"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "0.png").write_bytes(encode_image(make_pixels(0)))
    source = FolderSource(str(tmp_path))
    with pytest.raises(UserError, match="2 classes, 'ant' the first.*unicl.*set classes=source"):
        SAMPLER.check(source)
    with pytest.raises(ConfigError, match=r"config.data: .*--config.data.classes=source$"):
        make(lambda: SAMPLER.check(source), {}, "config.data")
    with pytest.raises(UserError, match="there is no metadata.jsonl or metadata.csv or metadata.p"):
        read_image_folder(str(tmp_path))
    (tmp_path / "bee" / "metadata.csv").write_text("file_name,text\n0.png,a bee\n")
    with pytest.raises(UserError, match="set path=.*/bee"):
        read_image_folder(str(tmp_path))
    assert read_image_folder(f"{tmp_path}/bee").read_text(0, 0) == (["a bee"], ())


def test_a_source_with_some_captions_passes_and_one_without_is_told_what_to_set():
    pixels = np.zeros((40, 2, 2, 3), np.uint8)
    SAMPLER.check(ArraySource(pixels, [[]] * 20 + [["a"]] * 20))
    with pytest.raises(UserError, match="none of 16 .*array: 0 has none.*captions_per_image=0"):
        SAMPLER.check(ArraySource(pixels, [[]] * 40))


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (['{"file_name": "0.png", "text": "a"}', "{"], "jsonl, line 2 is not JSON"),
        (['["0.png"]'], "line 1 is not a JSON object"),
        (["", '{"text": "a", "file_name": 3}'], "line 2 names no image in the field 'file_name'"),
        (['{"file_name": "1.png", "text": "a"}'], "line 1: there is no file .*1.png"),
        (['{"file_name": "0.png", "label": 1.5}'], "line 1: the label is '1.5', not an integer or"),
        (['{"file_name": "0.png", "label": 1, "n": 2}', '{"file_name": "0.png", "label": "a"}'],
         "line 2: the label is 'a' and that of line 1 is '1'"),
        (["[" * 100_000], "line 1 is not JSON"),
    ],
)  # fmt: skip
def test_mistakes_of_metadata_name_file_and_line(lines, message, tmp_path):
    (tmp_path / "0.png").write_bytes(encode_image(make_pixels(0)))
    (tmp_path / "metadata.jsonl").write_text("\n".join(lines) + "\n")
    with pytest.raises(UserError, match=message):
        read_image_folder(str(tmp_path))


def test_a_caption_of_metadata_that_is_no_text_breaks_its_example_alone(tmp_path):
    (tmp_path / "0.png").write_bytes(encode_image(make_pixels(0)))
    texts = ["a", 7.5, ["b", None], [["c"]], {"en": "d"}, True, None, []]
    rows = []
    for number, text in enumerate(texts):
        (tmp_path / f"{number}.png").write_bytes(encode_image(make_pixels(number)))
        rows.append({"file_name": f"{number}.png", "text": text})
    (tmp_path / "metadata.jsonl").write_text("\n".join(map(json.dumps, rows)))
    source = read_image_folder(str(tmp_path))
    assert source.read_text(0, 0) == (["a"], ())
    for number in range(1, len(texts)):
        with pytest.raises(BrokenExample, match="the caption (is|has)"):
            source.read_text(0, number)


def test_images_of_one_id_are_refused(tmp_path):
    (tmp_path / "0.png").write_bytes(encode_image(make_pixels(0)))
    images = [{"id": n, "file_name": f"{n}.png"} for n in (0, 1)] + [{"id": 0, "file_name": "2"}]
    found = {"images": images, "annotations": [{"image_id": 0, "caption": "a"}]}
    (tmp_path / "x.json").write_text(json.dumps(found))
    with pytest.raises(UserError, match="x.json: 2 images have the id 0; each needs one of its"):
        CocoSource(str(tmp_path / "x.json"))


def test_an_annotation_of_no_image_is_named(tmp_path):
    (tmp_path / "0.png").write_bytes(encode_image(make_pixels(0)))
    annotations = [{"image_id": n, "caption": "a"} for n in (0, 17, 0)]
    found = {"images": [{"id": 0, "file_name": "0.png"}], "annotations": annotations}
    (tmp_path / "x.json").write_text(json.dumps(found))
    with pytest.raises(UserError, match="x.json: annotation 1, .* is of the image 17, which `imag"):
        CocoSource(str(tmp_path / "x.json"))


def test_files_with_two_images_or_no_text_are_left_out_and_told(tmp_path, caplog):
    for name in ("0.png", "1.png", "1.jpg", "2.png", "3.png"):
        (tmp_path / name).write_bytes(encode_image(make_pixels(0)))
    for name in "0134":
        (tmp_path / f"{name}.txt").write_text(f"number {name}")
    with caplog.at_level("WARNING", logger="absl"):
        source = FilePairsSource(str(tmp_path))
    assert source.broken.tolist() == [2] and source.shard_sizes.tolist() == [2]
    assert [source.read_text(0, n)[0] for n in range(2)] == [["number 0"], ["number 3"]]
    assert re.search("2 images are left out; .*/1, there are several images: jpg, png", caplog.text)
    for name in "03":
        (tmp_path / f"{name}.png").unlink()
    with pytest.raises(UserError, match="no image in .*of the first, .*/1, there are several imag"):
        FilePairsSource(str(tmp_path))


def test_metadata_has_labels_by_number_or_name(tmp_path):
    (tmp_path / "0.png").write_bytes(encode_image(make_pixels(0)))
    (tmp_path / "1.png").write_bytes(encode_image(make_pixels(1)))
    rows = [{"file_name": "0.png", "label": ["dog", "cat"]}, {"file_name": "1.png", "label": "dog"}]
    (tmp_path / "metadata.jsonl").write_text("\n".join(map(json.dumps, rows)))
    source = read_image_folder(str(tmp_path))
    assert source.class_names == ("cat", "dog")
    assert [source.read(0, n).labels for n in range(2)] == [(1, 0), (1,)]


def test_several_paths_are_a_list_or_one_text(shards):
    paths = [shards.replace("{00000..00003}", f"0000{n}") for n in (2, 0)]
    listed, tuple_, comma = (TarSource(p) for p in (paths, tuple(paths), ",".join(paths)))
    assert listed.shard_sizes.tolist() == [9, 7]
    for source in (tuple_, comma):
        assert [source.read(s, 0) for s in (0, 1)] == [listed.read(s, 0) for s in (0, 1)]
    config = {"name": "tar", "path": paths}
    assert make(TarSource, config, "config.data.source").shard_sizes.tolist() == [9, 7]


def test_names_of_files_may_have_dots(tmp_path):
    names = ("one", "IMG_2023.01.05", "Screenshot at 1.23.45 PM", "v.2.final")
    for name in names:
        (tmp_path / f"{name}.jpg").write_bytes(encode_image(make_pixels(0), "JPEG"))
        (tmp_path / f"{name}.txt").write_text(f"this is {name}")
    for name in ("one.mask.png", "masks/two.mask.png", "._one.jpg"):  # no images of their own
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(encode_image(make_pixels(1)))
    source = FilePairsSource(str(tmp_path))
    found = {source.key(0, n): source.read_text(0, n)[0] for n in range(source.shard_sizes[0])}
    assert found == {name: [f"this is {name}"] for name in names}
    assert source.broken.tolist() == [0]


def test_endings_may_have_dots(tmp_path):
    for name in ("one", "2023.01"):
        (tmp_path / f"{name}.png").write_bytes(encode_image(make_pixels(0)))
        for language in ("en", "de"):
            (tmp_path / f"{name}.{language}.txt").write_text(f"{name} in {language}")
    for language in ("en", "de"):
        source = FilePairsSource(str(tmp_path), caption=f"{language}.txt")
        found = {source.key(0, n): source.read_text(0, n)[0] for n in range(source.shard_sizes[0])}
        assert found == {name: [f"{name} in {language}"] for name in ("one", "2023.01")}


def test_an_image_with_dots_and_no_text_counts_as_broken(tmp_path, caplog):
    for name in ("one", "IMG_2023.01.05"):
        (tmp_path / f"{name}.png").write_bytes(encode_image(make_pixels(0)))
    (tmp_path / "one.txt").write_text("one")
    with caplog.at_level("WARNING", logger="absl"):
        assert FilePairsSource(str(tmp_path)).broken.tolist() == [1]
    assert "IMG_2023.01.05, the file 'txt' is missing" in caplog.text


def test_lines_end_where_editors_end_them():
    """Not at U+2028, nor at U+0085, which is what a misread ellipsis becomes."""
    text = "a dog\u2028runs\r\na cat\x85\n"
    assert clean_captions(text, lines=True) == ["a dog\u2028runs", "a cat"]


def test_white_space_and_marks_at_the_ends_are_no_text():
    ends = "\ufeff\u200b\u00a0\u3000\n \x1f"
    assert clean_captions([f"{ends}a\u00a0dog{ends[::-1]}", ends, "b"]) == ["a\u00a0dog", "b"]
    with pytest.raises(BrokenExample, match="the caption is empty"):
        clean_captions("\u200b")
