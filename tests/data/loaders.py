"""Loaders of one source, put together of their parts."""

import numpy as np

from big_align.data.loading.extra_fields import ExtraFields
from big_align.data.loading.image_pipeline import ImagePipeline
from big_align.data.loading.loader import TrainLoader
from big_align.data.loading.rows import RowStream
from big_align.data.loading.stream import ExampleStream
from big_align.data.loading.text_samplers import CaptionSampler, NoTextSampler, TemplateSampler
from big_align.data.text.tokenizers import WordTokenizer

WORDS = WordTokenizer(("number", "n", *map(str, range(100))), length=4)
FLIP = "resize(8)|random_crop(6)|flip_horizontal"

STREAM = ("seed", "window", "max_broken_fraction")
IMAGES = ("views_per_image",)
CAPTIONS = ("captions_per_image", "captions_used", "keep_label")
TEMPLATES = ("captions_per_image", "templates", "label_offset")


def make_sampler(tokenizer, classes=None, **options):
    if classes is not None:
        return TemplateSampler(tokenizer, classes, **options)
    if options.get("captions_per_image") == 0:
        return NoTextSampler(tokenizer, options.get("keep_label", True))
    return CaptionSampler(tokenizer, **options)


def make_stream(source, batch_size, transform, tokenizer, **options) -> RowStream:
    """Gives each part its options; an option of none is an error."""
    joins, tagger = options.pop("joins", {}), options.pop("tagger", None)
    take = lambda names: {n: options.pop(n) for n in names if n in options}  # noqa: E731
    stream = ExampleStream(source, batch_size, **take(STREAM))
    pipeline = ImagePipeline(transform, **take(IMAGES))
    classes = options.pop("classes", None)
    texts = make_sampler(tokenizer, classes, **take(CAPTIONS if classes is None else TEMPLATES))
    assert not options, f"unknown or out of place: {sorted(options)}"
    images = None if "image_embedding" in joins else pipeline
    return RowStream(stream, texts, images, ExtraFields(joins, tagger))


def make_loader(
    source,
    batch_size=8,
    transform="",
    tokenizer=WORDS,
    *,
    rows=None,
    num_threads=3,
    prefetch=4,
    num_processes=0,
    **options,
) -> TrainLoader:
    """A loader of one source."""
    stream = make_stream(source, batch_size, transform, tokenizer, **options)
    return TrainLoader(stream, rows, num_threads, prefetch, num_processes)


def assert_equal(one, two):
    """Compares batches."""
    assert one.keys() == two.keys()
    for name in one:
        np.testing.assert_array_equal(one[name], two[name])
