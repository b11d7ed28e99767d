import pytest

from big_align.data.labels.classes import ClassList, read_classes
from big_align.data.labels.prompts import choose_templates, fill_class_templates
from big_align.data.labels.templates import fill_templates, read_templates

CRANES = ClassList(("crane", "crane"), ("a bird.", "{} lifts {description}"), ("", ""))


def test_every_name_goes_into_every_template():
    filled = fill_class_templates(ClassList.from_names(("cat", "{dog}")), ["a {}.", "{}"])
    assert filled == [["a cat.", "cat"], ["a {dog}.", "{dog}"]]


def test_a_template_without_a_place_is_refused():
    for templates in (["a photo"], ["{} and {}"], [], ["{name} {}"], [3], ["{} {what}"]):
        with pytest.raises(ValueError, match="template"):
            read_templates(templates)


@pytest.mark.parametrize(
    ("template", "described", "bare"),
    [
        ("a photo of a {}, {description}", "a photo of a crane, a bird", "a photo of a crane"),
        ("A {name}: {description}.", "A crane: a bird.", "A crane."),
        ("{description} ({name})", "a bird (crane)", " (crane)"),
        ("a {}", "a crane", "a crane"),
    ],
)
def test_a_description_goes_where_the_template_has_it(template, described, bare):
    (read,) = read_templates(template)
    assert fill_templates((read,), "crane", "a bird.") == [described]
    assert fill_templates((read,), "crane") == [bare]


def test_what_is_put_in_is_not_read_as_a_template():
    filled = fill_class_templates(CRANES, ("{description}: a {}",))
    assert filled == [["a bird: a crane"], ["{} lifts {description}: a crane"]]


def test_descriptions_that_are_asked_for_and_missing_are_told(caplog):
    asking = "a photo of a {}, {description}"
    with pytest.raises(ValueError) as error:
        fill_class_templates(read_classes("cifar10"), (asking,))
    assert str(error.value) == (
        "class list cifar10: 10 of 10 classes have no description, 'airplane' the first, and the "
        "template 'a photo of a {}, {description}' asks for it; python -m "
        "big_align.tools.describe_classes --classes=cifar10 --output=DESCRIBED.json writes a list "
        "with those of WordNet or of a file; a template without {description} needs none"
    )
    with pytest.raises(ValueError, match="the given names: 1 of 1 classes have no description"):
        choose_templates(ClassList.from_names(("cat",)), (asking,))
    some = ClassList(("crane", "dog"), ("a bird.", ""), ("", ""))
    assert fill_class_templates(some, (asking,)) == [
        ["a photo of a crane, a bird"],
        ["a photo of a dog"],
    ]
    assert "the given names: 1 of 2 classes have no description, 'dog' the first" in caplog.text
    assert fill_class_templates(some, None)[1] == ["a photo of a dog."]


def test_given_templates_come_before_those_of_the_list():
    own = read_classes("mnist")
    assert choose_templates(own, ("{}",)) == ("{}",)
    assert choose_templates(own, None) == ('a photo of the number: "{}".',)
    assert choose_templates(ClassList.from_names(("cat",)), None) == ("a photo of a {}.",)


def test_synonyms_go_into_every_template_after_the_name():
    classes = ClassList(("sad", "angry"), ("", ""), ("", ""), (), (("depressed",), ()))
    filled = fill_class_templates(classes, ["a {}.", "{}"])
    assert filled == [["a sad.", "sad", "a depressed.", "depressed"], ["a angry.", "angry"]]
    plain = ClassList.from_names(("sad", "angry"))
    assert fill_class_templates(classes, ["{}"], synonyms=False) == [["sad"], ["angry"]]
    assert fill_class_templates(plain, ["{}"]) == [["sad"], ["angry"]]
    assert fill_class_templates(plain, None)[0] == ["a photo of a sad."]
    two = ClassList(("crane",), ("a bird.",), ("",), (), (("heron",),))
    assert fill_class_templates(two, ["{}, {description}!"]) == [
        ["crane, a bird!", "heron, a bird!"]
    ]
