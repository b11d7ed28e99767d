"""Where a description comes from, with a dictionary of five entries."""

import json

import pytest

from big_align.data.labels.classes import ClassList
from big_align.data.labels.descriptions import (
    apply_descriptions,
    describe,
    name_ids,
    read_descriptions,
    report,
)
from big_align.data.labels.word_net import WordNet

BIRD, LIFT, LENS = "n02012849", "n03126707", "n04355933"


class FewWords(WordNet):
    """Says what it was told."""

    def describe_id(self, id):
        return {BIRD: "a bird", LIFT: "a machine", LENS: "glass", "n00000001": "glass"}.get(id, "")

    def senses_of(self, name):
        senses = {"crane": [(LIFT, "a machine"), (BIRD, "a bird")], "cat": [("n1", "a feline")]}
        return senses.get(name, [])


class NoWordNet(WordNet):
    """Fails when it is asked."""

    def describe_id(self, id):
        raise AssertionError(id)

    senses_of = describe_id


def listed(*rows) -> ClassList:
    return ClassList(*zip(*rows, strict=True))


def run(classes, given=None, word_net=None):
    found = describe(classes, word_net or FewWords(), given or {})
    described = apply_descriptions(classes, found)
    return described.descriptions, "\n".join(report(described, found, given or {}))


def write(tmp_path, content, name="d.json") -> str:
    text = content if isinstance(content, str) else json.dumps(content)
    (tmp_path / name).write_text(text, encoding="utf-8")
    return str(tmp_path / name)


def test_file_then_list_then_id_then_name():
    classes = listed(
        ("crane", "its own", LIFT), ("crane", "its own too", ""), ("crane", "", BIRD),
        ("crane", "", ""), ("crane", "", "folder 7"), ("cat", "", "n99999999"), ("yeti", "", ""),
    )  # fmt: skip
    given = {"folder 7": "by folder", LIFT: "by id"}
    assert run(classes, given)[0] == (
        "by id", "its own too", "a bird", "a machine", "by folder", "", "",
    )  # fmt: skip


def test_a_file_or_list_that_says_all_needs_no_dictionary():
    classes = listed(("leek", "a vegetable", BIRD), ("pear", "", ""))
    assert run(classes, {"pear": "a fruit"}, NoWordNet())[0] == ("a vegetable", "a fruit")
    with pytest.raises(AssertionError):
        run(classes, {}, NoWordNet())


def test_ids_alone_get_names_and_named_classes_keep_theirs():
    class Lemmas(FewWords):
        """Names what it was told."""

        def name_id(self, id):
            return {BIRD: "crane", LIFT: "crane"}[id]

    named = name_ids(listed(("", "", BIRD), ("my crane", "", LENS), ("", "", LIFT)), Lemmas())
    assert named.names == ("crane", "my crane", "crane") and named.ids == (BIRD, LENS, LIFT)
    classes = listed(("big bird", "", BIRD), ("yeti", "", ""))
    assert name_ids(classes, NoWordNet()) == classes
    assert name_ids(classes, Lemmas(), rename=True).names == ("crane", "yeti")


def test_one_name_with_two_ids_is_told_apart():
    descriptions, text = run(listed(("crane", "", BIRD), ("crane", "", LIFT)))
    assert descriptions == ("a bird", "a machine")
    assert f"0 crane, a bird ({BIRD})" in text and f"1 crane, a machine ({LIFT})" in text


def test_one_name_with_one_meaning_is_refused_unless_ids_say_so():
    for rows in (
        [("crane", "", "left"), ("crane", "", "right")],
        [("crane", "", LIFT), ("crane", "", "")],
        [("yeti", "", "left"), ("yeti", "", "right")],
    ):
        with pytest.raises(ValueError, match="labels 0, 1 are all '(crane, a machine|yeti)'"):
            run(listed(*rows))
    descriptions, text = run(listed(("lens", "", LENS), ("lens", "", "n00000001")))
    assert descriptions == ("glass", "glass")
    assert "which no text can distinguish (1):\n  0, 1: lens, glass" in text


def test_the_report_counts_and_names():
    classes = listed(
        ("crane", "", ""), ("cat", "", ""), ("yeti", "", ""), ("lens", "", LENS),
        ("pear", "", ""), ("ghost", "", "n99999999"),
    )  # fmt: skip
    assert run(classes, {"pear": "a fruit", "paer": "a typo"})[1].splitlines() == [
        "6 classes",
        "       1 by the file of descriptions",
        "       1 by WordNet ids",
        "       2 by names in WordNet",
        "       2 without a description",
        "Names with several senses in WordNet, and the one taken (an id chooses another) (1):",
        f"  0 crane: a machine ({LIFT}, first of 2)",
        "Without a description (2):",
        "  2 yeti: no noun of WordNet",
        "  5 ghost n99999999: no synset has this id",
        "In the file of descriptions, but no class (1):",
        "  paer",
    ]


def test_all_forms_of_a_file_are_equal(tmp_path):
    wanted = {"rocking chair": "it rocks, a bit", BIRD: "a bird"}
    rows = [
        {"name": "rocking_chair", "description": "it rocks,  a bit"},
        {"wnid": BIRD, "description": "a bird"},
        {"name": "empty", "description": ""},
    ]
    csv = f'name,id,description\nrocking_chair,,"it rocks, a bit"\n,{BIRD},a bird\nempty,,\n'
    flat = {"rocking_chair": "it rocks, a bit", BIRD: "a bird", "empty": None}
    for content, name in ((rows, "a.json"), ({"classes": rows}, "b.json"), (csv, "c.csv")):
        assert read_descriptions(write(tmp_path, content, name)) == wanted
    assert read_descriptions(write(tmp_path, flat)) == wanted


def test_a_name_with_two_descriptions_needs_an_id(tmp_path):
    rows = [
        {"name": "crane", "id": BIRD, "description": "flies"},
        {"name": "crane", "id": LIFT, "description": "lifts"},
    ]
    given = read_descriptions(write(tmp_path, rows))
    assert run(listed(("crane", "", LIFT), ("crane", "", BIRD)), given)[0] == ("lifts", "flies")
    with pytest.raises(ValueError, match="'crane' has several; choose one by the `id`"):
        run(listed(("crane", "", "")), given)


@pytest.mark.parametrize(
    ("content", "name", "message"),
    [
        ("{", "a.json", "a.json is not JSON"),
        ([1], "a.json", "must be an object {name or id: description} or a list"),
        ({}, "a.json", "has none; a row needs a `description` and a `name` or an `id`"),
        ("title,text\na,b\n", "a.csv", "has none; a row needs a `description`"),
        (
            "name,description\ncat,small, furry\n",
            "a.csv",
            "a.csv, line 2 has 3 columns and",
        ),
        ("name,id,description\ncat,small\n", "a.csv", "line 2 has 2 columns and the first line 3"),
        ('name,description\ncat,"small\n' + "x\n" * 99_999, "a.csv", "line .*: .*(limit|end of)"),
    ],
)
def test_a_wrong_file_is_named(tmp_path, content, name, message):
    with pytest.raises(ValueError, match=message):
        read_descriptions(write(tmp_path, content, name))
    with pytest.raises(ValueError, match="none.json cannot be read"):
        read_descriptions(str(tmp_path / "none.json"))
