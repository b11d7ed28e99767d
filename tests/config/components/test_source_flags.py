"""Every tool takes every source in the same words; the path tells its kind where that is safe."""

from collections.abc import Sequence

import numpy as np
import pytest
from PIL import Image

from big_align.config.components import tables
from big_align.config.components.signatures import list_kinds, list_settable, lookup
from big_align.config.components.source_flags import (
    make_source,
    open_captions,
    open_source,
    read_values,
    recognize_source,
    write_source_flags,
)
from big_align.core.errors import ConfigError, UserError
from big_align.tools import build_tags, build_vocab, embed, show_clusters
from tests.data.samples import encode_image, make_pixels, write_tar

CAPTIONS = ["a red cat", "two dogs", "a cat and a dog"]


@pytest.fixture
def table(tmp_path):
    lines = ["image,caption"]
    for number, caption in enumerate(CAPTIONS):
        Image.new("RGB", (8, 8)).save(tmp_path / f"{number}.png")
        lines.append(f"{number}.png,{caption}")
    path = tmp_path / "pairs.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("a.csv", "csv"), ("s3://b/a.TSV", "csv"), ("x/{a,b}/t-*.tar", "tar"),
        ("a-{00..09}.tar", "tar"), ("a.tfrecord", "tfrecord"),
        ("a.tfrecord-*-of-00008", "tfrecord"), ("a.npz", "npz"),
        ("a.txt", "text"), ("tfds:mnist:train", "tfds"), ("a/**/*.JPG", "images"),
        ("a/*.{jpg,png}", "images"), ("pairs.jsonl", "imagefolder"), ("captions.json", "coco"),
    ],
)  # fmt: skip
def test_a_path_tells_the_kind_of_a_source(path, name):
    assert recognize_source(path) == name


def test_a_json_file_with_a_list_is_none_of_coco(tmp_path):
    for text, name in (('{"images": []}', "coco"), ("\ufeff \n[{}]", "imagefolder")):
        (tmp_path / "x.json").write_text(text, encoding="utf-8")
        assert recognize_source(f"{tmp_path}/x.json") == name
    node = {"name": "coco", "path": f"{tmp_path}/x.json"}
    with pytest.raises(ConfigError, match="--config.data.source.name=imagefolder reads such files"):
        make_source(node, "config.data.source")


def test_splits_with_lists_of_files_are_no_classes(tmp_path):
    """As data sets of Hugging Face lie: train and test would be the classes."""
    for split in ("train", "test"):
        (tmp_path / "data" / split).mkdir(parents=True)
        (tmp_path / "data" / split / "metadata.jsonl").touch()
        (tmp_path / "data" / split / "0.jpg").touch()
    message = (
        r"is a folder of folders with metadata.jsonl; write --source=.*/data/test or --.*train,"
    )
    for path in (f"{tmp_path}/data", f"{tmp_path}/data/"):
        with pytest.raises(UserError, match=message):
            recognize_source(path)
    assert recognize_source(f"{tmp_path}/data/train") == "imagefolder"
    (tmp_path / "data" / "metadata.csv").touch()
    assert recognize_source(f"{tmp_path}/data") == "imagefolder"


def test_a_folder_of_class_folders_is_told_from_one_of_shards(tmp_path):
    (tmp_path / "classes" / "robin").mkdir(parents=True)
    assert recognize_source(str(tmp_path / "classes")) == "folder"
    (tmp_path / "files" / "00000").mkdir(parents=True)
    for ending in ("jpg", "txt"):
        (tmp_path / "files" / "00000" / f"000.{ending}").touch()
    assert recognize_source(str(tmp_path / "files")) == "files"
    (tmp_path / "images" / "more").mkdir(parents=True)
    (tmp_path / "images" / "a.jpg").touch()
    assert recognize_source(str(tmp_path / "images")) == "images"
    (tmp_path / "classes" / "robin" / "a.jpg").touch()
    assert recognize_source(str(tmp_path / "classes")) == "folder"
    (tmp_path / "classes" / "robin" / ".thumbnails").mkdir()
    (tmp_path / "classes" / "robin" / ".thumbnails" / "a.jpg").touch()
    (tmp_path / "classes" / ".b.jpg").touch()
    assert recognize_source(str(tmp_path / "classes")) == "folder"
    (tmp_path / "classes" / "robin" / "trip").mkdir()
    (tmp_path / "classes" / "robin" / "trip" / "b.jpg").touch()  # which no class folder has
    assert recognize_source(str(tmp_path / "classes")) == "images"
    source, _ = open_source(str(tmp_path / "classes"))
    assert source.shard_sizes.sum() == 2
    (tmp_path / "classes" / "metadata.jsonl").touch()
    assert recognize_source(str(tmp_path / "classes")) == "imagefolder"
    (tmp_path / "hub").mkdir()
    (tmp_path / "hub" / "train.parquet").touch()
    with pytest.raises(UserError, match=r"is a folder; write --source='.*/hub/\*.parquet'"):
        recognize_source(str(tmp_path / "hub"))
    (tmp_path / "shards").mkdir()
    (tmp_path / "shards" / "00000.tar").touch()
    with pytest.raises(UserError, match=r"is a folder; write --source='.*/shards/\*.tar'"):
        recognize_source(str(tmp_path / "shards"))
    with pytest.raises(
        UserError, match="does not say what kind of source it is: give --source_name"
    ):
        recognize_source(str(tmp_path / "*.h5"))
    with pytest.raises(UserError, match="pairs.tar.gz is compressed: unpack it"):
        recognize_source("pairs.tar.gz")
    with pytest.raises(UserError, match="--source=pairs.h5: there is no such file or folder"):
        recognize_source("pairs.h5")


@pytest.mark.parametrize(
    "names, message",
    [
        (["data/train-0.parquet", "data/test-0.parquet"], "write --source='{0}/data/*.parquet'"),
        (
            ["train/0.tar", "val/0.tar", "val/1.tar", ".git/x.arrow"],
            "write --source='{0}/train/*.tar' or --source='{0}/val/*.tar'",
        ),
        (["data-00000.arrow", "state.json"], "--source={0} has Arrow files, which are not read"),
        (["train/data-00000.arrow"], "datasets.load_from_disk(...).to_parquet(...) makes a file"),
    ],
)
def test_a_folder_of_folders_of_shards_says_which_there_are(names, message, tmp_path):
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    with pytest.raises(UserError) as told:
        recognize_source(str(tmp_path))
    assert message.format(tmp_path) in str(told.value)
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "0.jpg").touch()  # shards may be notes beside images
    assert recognize_source(str(tmp_path)) == "folder"


@pytest.mark.parametrize(
    ("names", "kind"),
    [
        (("0.jpg", "1.JPG", "README.txt"), "images"),
        (("0.jpe", "notes.csv"), "images"),
        (("0.png", "more/1.png", "pairs.tar", "0.png.json"), "images"),
        (("0.jpg", "0.txt", "1.jpg", "1.txt"), "files"),
        (("0.jpg", "0.json", "notes.csv"), "files"),
        (("0.jpg", "metadata.csv"), "imagefolder"),
        (("0.jpg", "metadata.parquet"), "imagefolder"),
        (("a/0.jpg", "a/0.txt"), "files"),
        (("a/0.jpg", "a/notes.txt"), "folder"),
        (("a/0.jpg", "a/notes.txt", "1.jpg"), "images"),
        (("0.JPG", "0.TXT"), "files"),
        (("a/0.jpg", "b/0.jpg", "README.txt"), "folder"),
        (("00000/0.jpg", "00000/0.txt", "00000.parquet", "00000_stats.json"), "files"),
    ],
)
def test_a_folder_with_images_is_read_whatever_lies_beside_them(tmp_path, names, kind):
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert recognize_source(str(tmp_path)) == kind


def test_a_text_that_begins_as_a_table_is_one(tmp_path):
    """As Kaggle's copies of Flickr8k have captions.txt: its file names are no words of captions."""
    for text, kind in (
        ("image,caption\n0.jpg,a dog , and a cat\n", "csv"),
        ("\ufeffsep=;\nfile_name;label\n0.jpg;3\n", "csv"),
        ("filename|comment\n", "csv"),
        ("a dog, and a cat\nimage,caption\n", "text"),
        ("image\ncaption\n", "text"),
        ("", "text"),
    ):
        (tmp_path / "captions.txt").write_text(text)
        assert recognize_source(f"{tmp_path}/captions.txt") == kind, text


def test_a_folder_with_a_table_of_captions_is_no_folder_of_classes(tmp_path):
    (tmp_path / "Images").mkdir()
    Image.new("RGB", (8, 8)).save(tmp_path / "Images/0.png")
    (tmp_path / "readme.txt").write_text("all about it, and more\n")
    assert recognize_source(str(tmp_path)) == "folder"
    (tmp_path / "captions.txt").write_text("image,caption\n0.png,a dog , a cat\n")
    with pytest.raises(UserError, match="write --source='.*/captions.txt', or --source_name=fol"):
        recognize_source(str(tmp_path))


def test_the_captions_of_one_data_set_are_the_same_from_every_layout(tmp_path, table):
    image = encode_image(make_pixels(0))
    members = []
    for number, caption in enumerate(CAPTIONS):
        members += [(f"{number}.png", image), (f"{number}.txt", caption.encode())]
    write_tar(tmp_path / "pairs.tar", members)
    (tmp_path / "pairs.txt").write_text("\n".join(CAPTIONS))
    pixels = np.zeros((3, 8, 8, 3), np.uint8)
    np.savez(tmp_path / "pairs.npz", image=pixels, caption=np.array(CAPTIONS))
    for ending in ("tar", "txt", "npz"):
        assert list(open_captions(str(tmp_path / f"pairs.{ending}"))[0]()) == CAPTIONS
    assert list(open_captions(str(table), arguments=["caption=caption"])[0]()) == CAPTIONS


def test_a_vocabulary_of_a_table_is_of_its_captions(table, tmp_path, capsys):
    output = tmp_path / "vocabulary.txt"
    arguments = [f"--source={table}", "--source_argument=caption=caption", "--size=60"]
    assert build_vocab.main([*arguments, f"--output={output}"]) == 0
    letters = {character for piece in output.read_text().split()[5:] for character in piece}
    assert letters - {"#"} == set("".join(CAPTIONS)) - {" "}  # file names have digits


VALUES = {
    str: ("", "(" * 9999, *"1 007 1e3 True ('a',) [1] 'a' \" a=b - x,y".split()),
    bool: (True, False),
    int: (0, -3, 10**20),
    tuple: (("a", "1"), ()),
    Sequence: (["a", "1"], ("b",)),
}


@pytest.mark.parametrize("table", [tables.SOURCES, tables.TOKENIZERS])
def test_a_field_is_read_in_the_type_that_its_component_gives_it(table):
    """Whatever a config can hold is read from the flag that says it."""
    checked = 0
    for name in table:
        target = lookup(name, table, "--source_name")
        for field, parameter in list_settable(target).items():
            kinds = list_kinds(parameter.hint)
            for value in (value for kind in kinds for value in VALUES[kind]):
                if len(kinds) > 1 and value in ("('a',)",):
                    continue  # several paths
                found = read_values([f"{field}={value}"], "--source_argument", target)
                assert found == {field: value}, (name, field)
                checked += 1
            if parameter.default is None:
                assert read_values([f"{field}=None"], "--x", target) == {field: None}
    assert checked > 50


def test_the_name_of_a_column_may_be_a_number(tmp_path):
    Image.new("RGB", (8, 8)).save(tmp_path / "0.png")
    (tmp_path / "pairs.csv").write_text("0,1\n0.png,a cat\n")
    given = ["caption=1", "image=0", "skip_bad_lines=True"]
    source, node = open_source(str(tmp_path / "pairs.csv"), arguments=given)
    assert source.read_text(0, 0)[0] == ["a cat"]
    assert (node["caption"], node["image"], node["skip_bad_lines"]) == ("1", "0", True)
    with pytest.raises(UserError, match="skip_bad_lines = 'yes' is not of type bool"):
        open_source(str(tmp_path / "pairs.csv"), arguments=["skip_bad_lines=yes"])


def test_a_source_without_captions_is_an_error_that_says_what_to_write(tmp_path, capsys):
    Image.new("RGB", (8, 8)).save(tmp_path / "0.png")
    (tmp_path / "pairs.csv").write_text("image,title\n0.png,a cat\n")
    arguments = [f"--source={tmp_path / 'pairs.csv'}", f"--output={tmp_path / 'v.txt'}"]
    assert build_vocab.main([*arguments, "--source_argument=caption="]) == 1
    error = capsys.readouterr().err
    assert "has a caption; write --source_argument=caption=COLUMN" in error
    assert not (tmp_path / "v.txt").exists()


def test_without_the_captions_an_image_needs_no_text(table):
    source, node = open_source(str(table))
    assert source.read(0, 0).captions == [] and node["name"] == "csv"


@pytest.mark.parametrize("tool", [build_tags, build_vocab, embed, show_clusters])
def test_every_tool_has_the_same_flags(tool):
    flags = ["--source=a", "--source_name=csv", "--source_argument=caption=title", "--output=o"]
    options = tool.parse_arguments([*flags, *(["--model=m"] if tool is embed else [])])
    options = options[0] if isinstance(options, tuple) else options
    assert (options.source, options.source_name) == ("a", "csv")
    assert options.source_argument == ["caption=title"]


def test_another_kind_that_reads_the_files_is_told(tmp_path):
    (tmp_path / "a.csv").write_text("image,caption\n0.jpg,a dog\n")
    where, told = "config.data.source", "--config.data.source.name=csv reads such files"
    with pytest.raises(UserError, match=f"{told}$"):
        make_source({"name": "tar", "path": f"{tmp_path}/a.csv", "caption": "txt"}, where)
    with pytest.raises(UserError) as error:  # of the same kind, or of none that is known
        make_source({"name": "tar", "path": f"{tmp_path}/none-*.tar"}, where)
    assert "reads such files" not in str(error.value)
    flags = write_source_flags({"name": "tar", "path": "a.parquet", "caption": "txt"})
    assert flags == "--source=a.parquet --source_name=parquet"
    flags = write_source_flags({"name": "tar", "path": "a.tar", "caption": "json.text"})
    assert flags == "--source=a.tar --source_name=tar --source_argument=caption=json.text"
