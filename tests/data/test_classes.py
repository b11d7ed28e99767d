"""A class list says the same in every form, and what is wrong with it is told by its place."""

import json
import pathlib

import fsspec
import pytest

import big_align.data.labels.classes
from big_align.core.errors import UserError
from big_align.data.labels.classes import (
    ClassList,
    built_in_names,
    join_classes,
    read_classes,
    write_classes,
)
from big_align.data.labels.label_names import read_names

CRANES = ClassList(
    ("heron", "crane", "crane"), ("", "a bird", "lifts, and lowers"), ("n1", "n2", ""), ("a {}.",)
)

SIZES = {  # of the data sets; Caltech101 has a background class
    "birdsnap": 500, "caltech101": 102, "cifar10": 10, "cifar100": 100, "clevr_counts": 8,
    "clevr_distance": 6, "country211": 211, "describable_textures": 47,
    "diabetic_retinopathy": 5, "dmlab": 6, "dsprites_orientation": 16, "dsprites_position": 16,
    "eurosat": 10, "fer2013": 7,
    "fgvc_aircraft": 100, "flowers102": 102, "food101": 101, "gtsrb": 43, "hateful_memes": 2,
    "imagenet": 1000, "kinetics700": 700, "kitti": 4, "mnist": 10, "objectnet": 113,
    "oxford_pets": 37, "smallnorb_azimuth": 18, "smallnorb_elevation": 9, "svhn": 10,
    "pascal_voc2007": 20, "patch_camelyon": 2, "resisc45": 45, "sst2": 2, "stanford_cars": 196,
    "stl10": 10, "sun397": 397, "ucf101": 101,
}  # fmt: skip


def test_a_list_may_be_in_a_bucket():
    fsspec.filesystem("memory").pipe("/lists/birds.csv", b"name,description\nheron,\ncrane,tall\n")
    classes = read_classes("memory://lists/birds.csv")
    assert (classes.names, classes.descriptions) == (("heron", "crane"), ("", "tall"))
    with pytest.raises(UserError, match="class list memory://lists/fish.csv cannot be read"):
        read_classes("memory://lists/fish.csv")


def write(tmp_path, content, name="classes.json") -> str:
    text = content if isinstance(content, str) else json.dumps(content)
    (tmp_path / name).write_text(text, encoding="utf-8")
    return str(tmp_path / name)


def test_all_forms_of_one_list_are_equal(tmp_path):
    rows = [("rocking_chair", "", ""), ("crane", "a bird, large", "n02012849")]
    keys = ("name", "description", "id")
    objects = [dict(zip(keys, row, strict=True)) for row in rows]
    wanted = ClassList(("rocking chair", "crane"), ("", "a bird, large"), ("", "n02012849"))
    csv = 'name, description, id\nrocking_chair,,\ncrane,"a bird, large",n02012849\n'
    for content, name in (
        (objects, "a.json"),
        ({"classes": objects}, "b.json"),
        ([{"label": 0, "names": "rocking chair, rocker"}, {**objects[1], "label": 1}], "c.json"),
        ([{"names": ["rocking chair", "rocker"]}, {**objects[1], "coarse": "bird"}], "d.json"),
        (csv, "e.csv"),
        ("\ufeff" + csv.replace("\n", "\r\n"), "f.csv"),
        (
            "sep=;\n" + 'name;description;id\nrocking_chair;;\ncrane;"a bird, large";n02012849\n',
            "h.csv",
        ),
        ("name\tdescription\tid\nrocking_chair\t\t\ncrane\ta bird, large\tn02012849\n", "g.tsv"),
    ):
        assert read_classes(write(tmp_path, content, name)) == wanted, name
    names = ClassList.from_names(("rocking chair", "crane"))
    assert read_classes(write(tmp_path, ["rocking_chair", "crane"])) == names
    assert read_classes(write(tmp_path, "rocking_chair\n crane \n\n", "a.txt")) == names
    for text in ("rocking_chair\ncrane\n", "name\nrocking_chair\ncrane\n"):
        assert read_classes(write(tmp_path, text, "a.tsv")) == names


PLAIN = ("tench", "great white shark", "3d printer", "2012 Tesla Model S")
SYNSETS = ("n01440764", "n01484850", "n04004767", "n04285008")


@pytest.mark.parametrize("form", ["{}: {}", "{} {}", "{}\t{}", "{}, {}", "{}. {}", "{} : {}"])
@pytest.mark.parametrize("first", [0, 1])
def test_numbers_that_count_the_lines_are_no_part_of_the_names(tmp_path, caplog, form, first):
    lines = [form.format(first + n, name) for n, name in enumerate(PLAIN)]
    path = write(tmp_path, "\n".join(lines) + "\n", "classes.txt")
    with caplog.at_level("INFO", logger="absl"):
        assert read_classes(path) == ClassList.from_names(PLAIN)
    assert f"{lines[0]!r} is 'tench'" in caplog.text
    assert read_names(path) == PLAIN


@pytest.mark.parametrize("form", ["{} {}", "{}: {}", "{}\t{}", "{},{}"])
def test_ids_of_wordnet_before_names_are_ids(tmp_path, form):
    lines = [form.format(id, name) for id, name in zip(SYNSETS, PLAIN, strict=True)]
    path = write(tmp_path, "\n".join(lines), "classes.txt")
    assert read_classes(path) == ClassList(PLAIN, ("",) * 4, SYNSETS)
    assert read_names(path) == PLAIN
    # as ImageNet's map_clsloc.txt
    lines = [f"{id} {n} {name}" for n, (id, name) in enumerate(zip(SYNSETS, PLAIN, strict=True), 1)]
    assert read_classes(write(tmp_path, "\n".join(lines), "b.txt")).names == PLAIN


@pytest.mark.parametrize(
    "lines",
    [
        ("2012 Tesla Model S", "2013 Audi A3", "2014 Fiat 500"),
        ("3d printer", "4d film"),
        ("1 euro coin", "2 euro coin", "3 euro coin"),
        ("1 person", "2 people"),
        ("1. FC Union", "2. Bundesliga"),
        ("0 cars", "1 car", "2 cars"),
        ("1 cat", "2 dog", "4 cow"),
        ("0: cat", "1 dog", "2: cow"),
        ("0: cat", "dog", "2: cow"),
        ("1: cat", "0: dog", "2: cow"),
        ("00: cat", "01: dog", "02: cow"),
        ("1.5 litres", "2.5 gallons", "3.5 pints"),
        ("7: cat", "8: dog"),
        ("1: cat",),
        ("0", "1", "2"),
        ("n01440764 tench", "shark"),
        ("n01440764 tench", "n01440764 shark"),
        ("n0144 tench", "n0145 shark"),
    ],
)
def test_numbers_of_names_stay(tmp_path, lines):
    path = write(tmp_path, "\n".join(lines), "classes.txt")
    assert read_names(path) == lines
    assert read_classes(path) == ClassList.from_names(lines)


def test_a_written_file_reads_back_equal(tmp_path):
    for classes in (CRANES, ClassList.from_names(('"quoted"', "naïve {}"))):
        path = str(tmp_path / "written.json")
        write_classes(classes, path, "a test")
        assert read_classes(path) == classes


def test_phrases_add_what_descriptions_there_are():
    assert CRANES.phrases() == ("heron", "crane, a bird", "crane, lifts, and lowers")
    one = ClassList(("leek",), ("Boil it.",), ("",))
    assert one.phrases() == ("leek, Boil it",)  # the template ends the sentence


def test_the_position_as_an_integer_is_a_label_and_no_id(tmp_path):
    assert read_classes(write(tmp_path, [{"id": 0, "name": "a"}])).ids == ("",)
    assert read_classes(write(tmp_path, "id,name\n0,a\nb7,c\n", "a.csv")).ids == ("", "b7")
    zeros = write(tmp_path, "id,name\n007,a\n7,a\n", "a.csv")  # ids, whatever they look like
    assert read_classes(zeros).ids == ("007", "7")
    assert read_classes(write(tmp_path, [{"id": "0", "name": "a"}])).ids == ("0",)
    assert read_classes(write(tmp_path, [{"id": 1, "name": "a"}])).ids == ("1",)


def test_equal_names_stay_different_classes(tmp_path):
    rows = [{"name": "crane", "id": "n1"}, {"name": "crane", "id": "n2"}, {"name": "crane"}]
    assert read_classes(write(tmp_path, rows)).names == ("crane",) * 3


def test_joining_shifts_labels_by_the_lengths_before():
    pets = ClassList.from_names(("cat", "crane"))
    joined = join_classes([CRANES, pets, CRANES])
    assert joined.names == (*CRANES.names, *pets.names, *CRANES.names)
    assert joined.descriptions[5:] == CRANES.descriptions and joined.ids[5:] == CRANES.ids
    assert joined.templates == ()
    assert join_classes([CRANES]) == CRANES
    assert join_classes([CRANES, CRANES]).templates == CRANES.templates
    nested = join_classes([join_classes([CRANES, pets]), CRANES])
    assert nested == joined


def test_built_in_lists_are_those_of_the_data_sets():
    assert {name: len(read_classes(name)) for name in built_in_names()} == SIZES
    for name in SIZES:
        classes = read_classes(name)
        assert classes.templates and all(x.count("{}") == 1 for x in classes.templates), name
    imagenet = read_classes("imagenet")
    assert len(imagenet.templates) == 80 and len(set(imagenet.ids)) == 1000
    assert imagenet.ids == tuple(sorted(imagenet.ids))  # the order of ILSVRC's labels
    assert (imagenet.names[134], imagenet.ids[134]) == ("crane bird", "n02012849")
    assert read_classes("cifar10").names[:3] == ("airplane", "automobile", "bird")
    assert read_classes("fer2013").names[3] == "happy"


def test_synonyms_are_kept_in_every_way(tmp_path):
    classes = ClassList(("happy", "sad"), ("", ""), ("", ""), (), (("smiling", "gay"), ()))
    write_classes(classes, str(tmp_path / "a.json"), "a test")
    assert read_classes(str(tmp_path / "a.json")) == classes
    joined = join_classes([CRANES, classes, CRANES])
    assert joined.synonyms == ((), (), (), ("smiling", "gay"), (), (), (), ())
    assert join_classes([CRANES, CRANES]).synonyms == () == read_classes("cifar10").synonyms
    content = [{"name": "a", "synonyms": ["b_c "]}, "d"]
    assert read_classes(write(tmp_path, content)).synonyms == (("b c",), ())
    with pytest.raises(ValueError, match="1 lists of synonyms for 2 classes"):
        ClassList(("a", "b"), ("", ""), ("", ""), (), (("c",),))


@pytest.mark.parametrize("synonyms", ["smiling", [3], [""], {"a": 1}])
def test_synonyms_that_are_no_list_of_names_are_refused(tmp_path, synonyms):
    with pytest.raises(UserError, match="classes.json, entry 0: `synonyms` must be a list"):
        read_classes(write(tmp_path, [{"name": "a", "synonyms": synonyms}]))


def test_the_licence_of_the_names_is_kept():
    folder = pathlib.Path(big_align.data.labels.classes.BUILT_IN)
    assert "Copyright (c) 2021 OpenAI" in (folder / "LICENSE").read_text(encoding="utf-8")


def test_lists_of_real_data_sets(data_dir):
    tiny = read_classes(str(data_dir / "tiny_imagenet" / "classes.json"))
    assert len(tiny) == len(set(tiny.ids)) == 202
    assert (tiny.names[3], tiny.ids[3]) == ("rocking chair", "n04099969")
    grocery = read_classes(str(data_dir / "grocery" / "classes.json"))
    assert len(grocery) == 81 and set(grocery.ids) == {""} and all(grocery.descriptions)
    assert grocery.names[0] == "Golden-Delicious"


@pytest.mark.parametrize(
    ("content", "name", "message"),
    [
        ([], "a.json", "a.json: has no class"),
        ("\n\n", "a.txt", "a.txt: has no class"),
        ("name,id\n", "a.csv", "a.csv: has no class"),
        (["a", ""], "a.json", "a.json, entry 1: has no name"),
        (["a", {"names": []}], "a.json", "a.json, entry 1: has no name"),
        ([{"description": "x"}], "a.json", "a.json, entry 0: has no name"),
        ("a\n\nb\n", "a.txt", "a.txt, line 2: has no name"),
        ("name,id\na,n1\n,n2\n", "a.csv", "a.csv, line 3: has no name"),
        ([3], "a.json", "entry 0: 3 must be a text or an object with a `name`"),
        ([{"name": "a", "description": 3}], "a.json", "entry 0: the description of 'a' must be"),
        (
            [{"name": "a", "label": 1}],
            "a.json",
            "entry 0: `label` is 1; it must be the position, 0",
        ),
        (
            ["a", "b", "a"],
            "a.json",
            "entry 0 and entry 2 are both 'a' and nothing distinguishes them",
        ),
        ("a_b\nc\na b\n", "a.txt", "line 1 and line 3 are both 'a b'"),
        ("label\n0\n", "a.csv", "the first line must name the columns, `name` .*; it has: label"),
        ("name,description\na,b,c\n", "a.csv", "line 2 has 3 columns and the first line 2"),
        ("label\tclass\n0\ta\n", "a.tsv", "the first line must name the columns, .*: label, class"),
        ("{", "a.json", "a.json is not JSON"),
        ({"names": ["a"]}, "a.json", "must be a list .* or an object with `classes`"),
        ({"classes": ["a"], "templates": ["x"]}, "a.json", "one {} where the class name goes"),
    ],
)
def test_a_wrong_list_is_named_by_its_line(tmp_path, content, name, message):
    with pytest.raises(ValueError, match=message):
        read_classes(write(tmp_path, content, name))


def test_an_unknown_list_suggests_a_near_one(tmp_path):
    with pytest.raises(
        ValueError, match="'cifar_100' is neither .*did you mean 'cifar100'.*ucf101"
    ):
        read_classes("cifar_100")
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9\n")
    with pytest.raises(ValueError, match="latin.txt, line 1 is not UTF-8"):
        read_classes(str(tmp_path / "latin.txt"))
    with pytest.raises(ValueError, match="2 names, 1 descriptions and 2 ids"):
        ClassList(("a", "b"), ("",), ("", ""))


def test_a_line_is_a_class_whatever_characters_are_in_it(tmp_path):
    names = read_classes(write(tmp_path, "cat\r\nice\u2028cream\ndog\x0bhouse\n", "a.txt")).names
    assert len(names) == 3 and (names[0], names[1][:3], names[2][:3]) == ("cat", "ice", "dog")
