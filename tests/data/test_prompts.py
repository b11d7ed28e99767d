import pytest

from big_align.data.labels.classes import ClassList, read_classes
from big_align.data.labels.prompts import (
    choose_templates,
    fill_class_templates,
    fill_templates,
)


def test_every_name_goes_into_every_template():
    filled = fill_templates(["cat", "{dog}"], ["a {}.", "{}"])
    assert filled == [["a cat.", "cat"], ["a {dog}.", "{dog}"]]


def test_a_template_without_a_place_is_refused():
    for templates in (["a photo"], ["{} and {}"], []):
        with pytest.raises(ValueError, match="template"):
            fill_templates(["cat"], templates)


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
    assert fill_class_templates(plain, ["{}"]) == fill_templates(plain.names, ["{}"])
    assert fill_class_templates(plain, None)[0] == ["a photo of a sad."]
    described = ClassList(("crane",), ("a bird.",), ("",))
    assert fill_class_templates(described, ["{}!"], with_descriptions=True) == [["crane, a bird!"]]
