import pytest

from big_align.data.prompts import fill_templates


def test_every_name_goes_into_every_template():
    filled = fill_templates(["cat", "{dog}"], ["a {}.", "{}"])
    assert filled == [["a cat.", "cat"], ["a {dog}.", "{dog}"]]


def test_a_template_without_a_place_is_refused():
    for templates in (["a photo"], ["{} and {}"], []):
        with pytest.raises(ValueError, match="template"):
            fill_templates(["cat"], templates)
