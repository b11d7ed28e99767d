"""What a config says about the loader is what its parts take."""

import dataclasses
import inspect
import math

import pytest

from big_align.data.derived.split_source import SplitSource
from big_align.data.loading.image_pipeline import ImagePipeline
from big_align.data.loading.loader import TrainLoader
from big_align.data.loading.settings import SHARED, LoaderSettings
from big_align.data.loading.stream import ExampleStream
from big_align.data.loading.text_samplers import (
    CaptionSampler,
    LanguageSampler,
    TemplateSampler,
)

PARTS = (
    *(ExampleStream, ImagePipeline, TrainLoader, SplitSource),
    *(CaptionSampler, LanguageSampler, TemplateSampler),
)
PARAMETERS = [
    parameter for part in PARTS for parameter in inspect.signature(part).parameters.values()
]
OF_SOURCE_AND_RUN = ("hold_out", "pipeline")
"""Fields that no part of a loader takes: what it reads, and who makes the batches."""
FIELDS = [x for x in dataclasses.fields(LoaderSettings) if x.name not in OF_SOURCE_AND_RUN]


@pytest.mark.parametrize("field", FIELDS, ids=lambda field: field.name)
def test_a_field_has_the_default_of_every_part_that_takes_it(field):
    empty = inspect.Parameter.empty
    default = empty if field.default is dataclasses.MISSING else field.default
    found = [parameter.default for parameter in PARAMETERS if parameter.name == field.name]
    assert found and found == [default] * len(found)


def test_settings_of_the_whole_batch_are_not_set_in_a_part():
    fields = {field.name for field in dataclasses.fields(LoaderSettings)}
    assert set(SHARED) <= fields
    assert set(SHARED) - {"pipeline"} == fields & set(inspect.signature(TrainLoader).parameters)


@pytest.mark.parametrize("part", PARTS)
def test_no_part_takes_more_than_eight_arguments(part):
    assert len(inspect.signature(part).parameters) <= 8


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_threads": 0}, "num_threads = 0 must be at least 1"),
        ({"num_processes": -1}, "num_processes = -1 must be at least 0"),
        ({"captions_used": 0}, "captions_used = 0 must be at least 1"),
        (
            {"captions_used": 2, "captions_per_image": 3},
            "captions_used = 2 must be at least 3",
        ),
        ({"prefetch": 0}, "prefetch = 0 must be at least 1"),
        ({"max_broken_fraction": -0.5}, "max_broken_fraction = -0.5 is not a fraction from 0 to 1"),
        ({"max_broken_fraction": math.nan}, "max_broken_fraction = nan is not a fraction"),
    ],
)
def test_numbers_out_of_range_are_told_before_any_source_is_opened(fields, message):
    with pytest.raises(ValueError, match=message):
        LoaderSettings(transform="decode", **fields)
    LoaderSettings(transform="decode", num_threads=1, num_processes=0, captions_used=1)
