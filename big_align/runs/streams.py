"""The streams of rows of the training data, built from a config without JAX."""

import shlex
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Int

from big_align.config.components.signatures import advise, lookup, make
from big_align.config.components.source_flags import write_source_flags
from big_align.config.components.tables import TOKENIZERS
from big_align.core.errors import ConfigError, FieldError, naming_field
from big_align.core.nodes import Given, Node
from big_align.data import files
from big_align.data.examples import Source
from big_align.data.labels.prompts import choose_templates, fill_class_templates
from big_align.data.labels.templates import fill_templates
from big_align.data.loading.extra_fields import ExtraFields
from big_align.data.loading.image_pipeline import ImagePipeline
from big_align.data.loading.loader import TrainLoader
from big_align.data.loading.mixture import part_rows, part_seed
from big_align.data.loading.rows import RowStream
from big_align.data.loading.settings import LoaderSettings
from big_align.data.loading.stream import ExampleStream
from big_align.data.loading.text_samplers import (
    CaptionSampler,
    LanguageSampler,
    NoTextSampler,
    TemplateSampler,
    TextSampler,
)
from big_align.data.package_files import locate
from big_align.data.precomputed.joins import open_joins
from big_align.data.tags.tag_extraction import Tagger
from big_align.data.text.caption_checks import count_mixed_languages
from big_align.runs import dataset


def make_tokenizer(config: Node) -> Any:
    """Makes the tokenizer of a config."""
    node = config["tokenizer"]
    target = lookup(node.get("name"), TOKENIZERS, "config.tokenizer")
    vocabulary = node.get("vocabulary") if getattr(target, "learned_by_tool", False) else None
    if isinstance(vocabulary, str) and not files.exists(locate(vocabulary)):
        told = _tell_vocabulary(config)
        raise ConfigError(f"config.tokenizer.vocabulary: there is no file {vocabulary}; {told}")
    return make(target, node, "config.tokenizer")


def _tell_vocabulary(config: Node) -> str:
    """Tells where the vocabulary comes from: a trained text tower knows the ids of its own only."""
    init = config.get("init") or {}
    for field in ("text", "all"):
        if weights := init.get(field):
            return (
                f"it has to be that of the text tower, config.init.{field} = {weights!r}: write "
                "--config.tokenizer.vocabulary=FOLDER/vocab.txt, or where its vocabulary lies"
            )
    copied = ", to be copied there" if "://" in config["tokenizer"]["vocabulary"] else ""
    return f"this makes it of your captions{copied}: {_write_build_vocab(config)}"


def _write_build_vocab(config: Node) -> str:
    """Writes the command that learns the vocabulary of a config from its training data."""
    nodes = [node for _, node in dataset.part_nodes(config).values()]
    flags = "--config=..., with the flags of this run for config.data,"
    if len(nodes) == 1 and not nodes[0].get("classes"):
        flags = write_source_flags(nodes[0]["source"])
    size = ((config.get("model") or {}).get("text") or {}).get("vocab_size") or 30_000
    output = config["tokenizer"]["vocabulary"]
    output = shlex.quote(output.rpartition("/")[2] if "://" in output else output)
    if (temperature := nodes[0].get("language_temperature")) is not None:
        flags += f" --temperature={temperature:g}"
    return f"python -m big_align.tools.build_vocab {flags} --size={size} --output={output}"


def build_loader(
    config: Node, tokenizer: Any, rows: Int[np.ndarray, " r"] | None = None
) -> TrainLoader:
    """Builds the loader of the training data, whatever `config.data.pipeline` is."""
    parts, mixed = dataset.read_parts(config), bool(config["data"].get("mixture"))
    settings = {name: make(LoaderSettings, p.loader, p.where) for name, p in parts.items()}
    weights = {name: float(part.weight) if mixed else 1.0 for name, part in parts.items()}
    counts = part_rows(weights, config["batch_size"])
    tagger = dataset.build_tagger(config)
    streams = {}
    for name, part in parts.items():
        streams[name if mixed else ""] = make(
            _build_rows,
            {},
            part.where,
            part=part,
            settings=settings[name],
            batch_size=counts[name],
            seed=part_seed(config["seed"], name) if mixed else config["seed"],
            tokenizer=tokenizer,
            tagger=tagger,
            keep_label=not mixed,
        )
    shared = next(iter(settings.values()))  # all parts share the fields of `settings.SHARED`
    return make(
        TrainLoader,
        {},
        "config.data",
        streams=streams,
        rows=rows,
        num_threads=shared.num_threads,
        prefetch=shared.prefetch,
        num_processes=shared.num_processes,
    )


def _build_rows(
    part: dataset.Part,
    settings: LoaderSettings,
    batch_size: Given[int],
    seed: Given[int],
    tokenizer: Any,
    tagger: Tagger | None,
    keep_label: Given[bool],
) -> RowStream:
    """Builds the stream of a part, and passes each of its components the settings it needs."""
    check_texts(part, tokenizer)
    source = dataset.open_source(part)
    try:
        limits = settings.window, settings.max_broken_fraction
        stream = ExampleStream(source, batch_size, seed, *limits)
    except FieldError as error:  # about the batch, which is the run's
        told = advise("config", **error.fields)
        raise ConfigError(f"{part.where}: {error.message}{told}") from error
    images = None
    if "image_embedding" not in part.precomputed:
        images = ImagePipeline(settings.transform, settings.views_per_image, settings.max_pixels)
    joins = open_joins(part.precomputed, source)
    extra = ExtraFields(joins, tagger, settings.captions_per_image)
    texts = _build_texts(part, source, settings, tokenizer, keep_label)
    return RowStream(stream, texts, images, extra)


def check_texts(part: dataset.Part, tokenizer: Any) -> None:
    """Checks the class texts of a part, if it reads any, as `check_class_texts` does."""
    if part.classes is None or part.loader.get("captions_per_image") == 0:
        return
    classes, given = part.classes, part.loader.get("templates")
    with naming_field(part.where):
        templates = choose_templates(classes, given)
        first = fill_templates(templates, classes.names[0], classes.descriptions[0])
        others = fill_class_templates(classes, templates[:1], synonyms=False)[1:]
    check_class_texts([first, *others], tokenizer, part.where)


def check_class_texts(texts: Sequence[Sequence[str]], tokenizer: Any, where: str) -> None:
    """Checks that a tokenizer takes all texts of the first class and one of each other."""
    with naming_field(where):
        tokenizer([*texts[0], *(group[0] for group in texts)])


def _build_texts(
    part: dataset.Part, source: Source, settings: LoaderSettings, tokenizer: Any, keep_label: bool
) -> TextSampler:
    """Builds the sampler of a part's texts: of its classes, of its captions, or none."""
    count = settings.captions_per_image
    if part.classes is not None:
        fill = settings.templates, part.label_offset
        return TemplateSampler(tokenizer, part.classes, count, *fill)
    if not count:
        return NoTextSampler(tokenizer, keep_label)
    choice = count, settings.captions_used, keep_label
    if settings.language_temperature is None:
        return CaptionSampler(tokenizer, *choice)
    counts = count_mixed_languages(source)
    return LanguageSampler(tokenizer, counts, settings.language_temperature, *choice)
