"""The pipelines of a job: examine the pairs, decide about them, write shards."""

import argparse
import logging
from collections.abc import Iterable
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions
from apache_beam.options.pipeline_options_validator import PipelineOptionsValidator
from apache_beam.runners.runner import create_runner

from big_align.core.errors import UserError, put_in_a_line, suggest
from big_align.data.shared import storage
from big_align.prepare import steps, transforms
from big_align.prepare.inputs import Stretch
from big_align.prepare.plan import JobPlan
from big_align.prepare.rules import Rules
from big_align.prepare.sampling import choose_rates
from big_align.prepare.sketch import is_sampled
from big_align.prepare.text_rules import identify_text

# Beam logs the traceback of an error that a worker raises; of a user error, a line is printed.
logging.getLogger("apache_beam.runners.common").addFilter(
    lambda record: not (record.exc_info and isinstance(record.exc_info[1], UserError))
)


def read_options(flags: list[str], ours: Iterable[str] = ()) -> PipelineOptions:
    """Reads the flags of Beam; one that is neither Beam's nor among `ours` is a UserError.

    Its DirectRunner first tries Prism, a program that it downloads from GitHub
    (https://github.com/apache/beam/pull/34612). What runs by that name here is the runner in Python
    that it falls back to.
    """
    _import_runner(flags)
    known = {
        option.split("=")[0]
        for kind in _list_kinds(PipelineOptions)
        for action in _list_actions(kind)
        for option in action.option_strings
    }
    for flag in flags:
        name = flag.partition("=")[0]
        if name not in known:
            meant = suggest(name, [*ours, *known])
            raise UserError(f"unknown flag {name}{meant}: neither ours nor Beam's")
    if not any("log_level" in flag for flag in flags):
        flags = ["--default_sdk_harness_log_level=ERROR", *flags]  # else each worker logs its ports
    options = PipelineOptions(flags)
    standard = options.view_as(StandardOptions)
    if standard.runner in (None, "DirectRunner"):
        standard.runner = "FnApiRunner"
    if faults := PipelineOptionsValidator(options, create_runner(standard.runner)).validate():
        raise UserError(f"flags of Beam: {put_in_a_line(' '.join(faults))}")
    return options


def _import_runner(flags: list[str]) -> None:
    """Imports the runner that flags name: some declare their own flags only then."""
    for flag in flags:
        name, _, runner = flag.partition("=")
        if name == "--runner" and runner:
            try:
                create_runner(runner)
            except (ImportError, AttributeError, ValueError) as error:
                raise UserError(f"{flag}: {put_in_a_line(str(error))}") from error


def _list_kinds(kind: type) -> list[type]:
    found = kind.__subclasses__()
    return [*found, *(deeper for each in found for deeper in _list_kinds(each))]


def _list_actions(kind: Any) -> list[Any]:
    parser = argparse.ArgumentParser(allow_abbrev=False, add_help=False, conflict_handler="resolve")
    if "_add_argparse_args" in vars(kind):  # by which Beam has every kind of options add its flags
        kind._add_argparse_args(parser)
    return parser._actions


def examine(plan: JobPlan, files: list[int], options: PipelineOptions) -> None:
    """Examines all pairs, and counts their tokens if a rule needs that."""
    with beam.Pipeline(options=options) as pipeline:
        stretches = (
            pipeline
            | "Files" >> beam.Create(files)
            | "Spread files" >> beam.Reshuffle()
            | "Open" >> beam.FlatMap(steps.open_file, plan)
            | "Plain" >> beam.Map(tuple).with_output_types(tuple[int, int, int])
            | "Spread" >> beam.Reshuffle()
            | "Examine" >> beam.Map(steps.examine, plan)
        )
        texts = stretches | "Texts" >> beam.Map(steps.read_texts, plan)
        tokens, width = plan.rules.tokens is not None, plan.sketch_width
        if tokens:
            (
                texts
                | "Tokens" >> transforms.CountTokens(bool(width))
                | "Note" >> beam.Map(_write_json, storage.join(plan.counted, "tokens.json"))
            )
        if width:
            (
                texts
                | "Sketch" >> beam.Map(steps.sketch_texts, width, tokens)
                | "Merge" >> beam.CombineGlobally(transforms.SumByName())
                | "Note sketches" >> beam.Map(steps.write_sketches, plan)
            )


def decide(plan: JobPlan, options: PipelineOptions) -> None:
    """Decides about all pairs, and which shard each goes to."""
    folder = plan.decisions
    with beam.Pipeline(options=options) as pipeline:
        stretches = (
            pipeline
            | "Stretches" >> beam.Create([tuple(stretch) for stretch in plan.list_stretches()])
            | "Spread" >> beam.Reshuffle()
            | "Stretch" >> beam.Map(lambda values: Stretch(*values))
        )
        pairs = stretches | "Pairs" >> beam.FlatMap(steps.read_pairs, plan).with_output_types(
            tuple[bytes, Any]
        )
        measured = stretches | "Measure" >> beam.Map(steps.measure, plan)
        judged, partners = _judge_texts(plan, pairs)
        reasons, crowds = _judge_images(plan, pairs)
        images = (
            {"pairs": judged, "reasons": reasons}
            | "By image" >> beam.CoGroupByKey()
            | "Has pairs" >> beam.Filter(_has, "pairs")
        )
        decided = images | "Decide" >> beam.FlatMap(
            transforms.decide, _choose_rates(images, plan.rules), plan
        ).with_output_types(tuple[str, Any])
        counts = (
            (_select(decided, "counts"), measured, partners, crowds)
            | beam.Flatten()
            | "Sum" >> beam.CombineGlobally(transforms.SumByName())
            | "Note counts" >> beam.Map(_write_json, storage.join(folder, "counts.json"))
        )
        noted = [counts, _note_samples(_select(decided, "samples"), folder)]
        if not plan.sample:
            noted.append(_note_rows(_select(decided, "kept"), plan))
        # all end in one step: a runner may compute only what the last step needs
        noted | "All noted" >> beam.Flatten() | "Done" >> beam.Map(lambda nothing: nothing)


def _choose_rates(images: beam.PCollection, rules: Rules) -> beam.pvalue.AsSingleton | None:
    """Returns which fraction of each language is kept, if languages are sampled."""
    if rules.language_temperature is None:
        return None
    rates = (
        images
        | "Left by language" >> beam.Map(transforms.count_languages, rules)
        | "Languages" >> beam.CombineGlobally(transforms.SumByName())
        | "Rates" >> beam.Map(choose_rates, rules.language_temperature, rules.language_floor)
    )
    return beam.pvalue.AsSingleton(rates)


def _note_samples(samples: beam.PCollection, folder: str) -> beam.PCollection:
    return (
        samples
        | "Name" >> beam.Map(lambda found: found).with_output_types(tuple[str, Any])
        | "Some" >> beam.combiners.Top.SmallestPerKey(transforms.SHOWN)
        | "Texts of samples" >> beam.Map(lambda found: {found[0]: [list(x[1:]) for x in found[1]]})
        | "All samples" >> beam.CombineGlobally(_join_samples)
        | "Note samples" >> beam.Map(_write_json, storage.join(folder, "samples.json"))
    )


def _note_rows(kept: beam.PCollection, plan: JobPlan) -> beam.PCollection:
    return (
        kept
        | "Rank" >> transforms.Rank()
        | "Place" >> beam.Map(steps.place_example, plan).with_output_types(
            tuple[tuple[int, int], Any]
        )
        | "By stretch" >> beam.GroupByKey()
        | "Note rows" >> beam.Map(steps.write_placed, plan)
    )  # fmt: skip


def _select(decided: beam.PCollection, kind: str) -> beam.PCollection:
    return (
        decided
        | f"Find {kind}" >> beam.Filter(lambda found, kind=kind: found[0] == kind)
        | f"Take {kind}" >> beam.Map(lambda found: found[1])
    )


def _judge_texts(
    plan: JobPlan, pairs: beam.PCollection
) -> tuple[beam.PCollection, beam.PCollection]:
    """Applies the rules about texts that need all pairs; returns pairs, and counts of images.

    If a sketch has counted texts, only those that may belong to too many images go through this,
    and rare tokens have been found already.
    """
    keyed = pairs | "By text id" >> beam.Map(
        lambda found: (identify_text(found[1][3]), found)
    ).with_output_types(tuple[bytes, Any])
    suspects, others = keyed, []
    if plan.sketch_width:
        suspects = keyed | "Suspects" >> beam.Filter(steps.is_suspect, plan)
        others = [
            keyed
            | "No suspects" >> beam.Filter(lambda found: not steps.is_suspect(found, plan))
            | "As they are" >> beam.Map(lambda found: found[1]).with_output_types(tuple[bytes, Any])
        ]
        keyed = keyed | "Suspects and a sample" >> beam.Filter(
            lambda found: steps.is_suspect(found, plan) or is_sampled(found[0])
        )
    real = keyed | "Texts alone" >> beam.Filter(lambda found: found[1][1][2] >= 0)
    partners = real | "Text and image" >> beam.Map(
        lambda found: (found[0], found[1][0])
    ).with_output_types(tuple[bytes, bytes])
    failed, counted = _find_many(partners, plan.rules.max_images, "shared", bool(plan.sketch_width))
    rule = None if plan.sketch_width else plan.token_rule()
    if rule:
        failed.append(
            real
            | "Words" >> beam.Map(lambda found: (found[0], found[1][1][3]))
            .with_output_types(tuple[bytes, str])
            | "Rare" >> transforms.FindRareTexts(rule)
        )  # fmt: skip
    judged = (
        {"pairs": suspects, "failed": failed | "Failed texts" >> beam.Flatten()}
        | "By text" >> beam.CoGroupByKey()
        | "Judge texts" >> beam.FlatMap(transforms.judge_text).with_output_types(tuple[bytes, Any])
    )
    return [judged, *others] | "All texts" >> beam.Flatten(), counted


def _judge_images(
    plan: JobPlan, pairs: beam.PCollection
) -> tuple[beam.PCollection, beam.PCollection]:
    """Finds images with too many texts, and those that are listed; returns counts of texts too."""
    real = pairs | "Real" >> beam.Filter(lambda found: found[1][2] >= 0)
    partners = real | "Image and text" >> beam.Map(
        lambda found: (found[0], identify_text(found[1][3]))
    ).with_output_types(tuple[bytes, bytes])
    reasons, counted = _find_many(partners, plan.rules.max_texts, "crowded")
    counts = [counted]
    if plan.listed:
        listed = pairs.pipeline | "Listed keys" >> beam.Create(
            sorted(steps.read_listed(plan.listed).items())
        ).with_output_types(tuple[str, str])
        named = pairs | "By key" >> beam.Map(
            lambda found, plan=plan: (plan.inputs.key(*found[1][:2]), found[0])
        ).with_output_types(tuple[str, bytes])
        joined = {"listed": listed, "images": named} | "Join keys" >> beam.CoGroupByKey()
        reasons.append(
            joined | "Listed" >> beam.FlatMap(_list_images).with_output_types(tuple[bytes, str])
        )
        counts.append(
            joined
            | "Unknown keys"
            >> beam.Map(lambda found: {"unknown_keys": int(not _has(found, "images"))})
        )
    return reasons | "Reasons" >> beam.Flatten(), counts | "Counts of images" >> beam.Flatten()


def _find_many(
    partners: beam.PCollection, most: int | None, rule: str, sampled: bool = False
) -> tuple[list[beam.PCollection], beam.PCollection]:
    """Finds what has too many partners: texts their images, or images their texts.

    Returns lists of (key, rule), and how many keys have how many partners. If the keys are a
    sample, this is estimated from it.
    """
    counts = partners | f"Partners: {rule}" >> transforms.CountPartners()
    nothing = beam.Create([]).with_output_types(tuple[bytes, str])
    failed = [partners.pipeline | f"None {rule}" >> nothing]
    if most is not None:
        failed.append(
            counts
            | f"Too many: {rule}" >> beam.Filter(lambda found, most=most: found[1] > most)
            | f"Say {rule}" >> beam.Map(lambda found, rule=rule: (found[0], rule))
            .with_output_types(tuple[bytes, str])
        )  # fmt: skip
    weigh = beam.Map(transforms.weigh_partners, rule, sampled)
    return failed, counts | f"Frequency: {rule}" >> weigh


def _list_images(joined: tuple[str, dict[str, Any]]) -> list[tuple[bytes, str]]:
    _, found = joined
    images = sorted(set(found["images"]))
    return [(image, f"listed {reason}") for image in images for reason in found["listed"]]


def _has(joined: tuple[Any, dict[str, Any]], kind: str) -> bool:
    """Returns whether something of a kind was joined under a key."""
    return any(True for _ in joined[1][kind])


def _join_samples(several: Any) -> dict[str, list[list]]:
    return {name: samples for found in several for name, samples in found.items()}


def _write_json(value: Any, path: str) -> None:
    storage.write_json(path, value)


def write(plan: JobPlan, wanted: list[int], options: PipelineOptions) -> None:
    """Writes the wanted shards."""
    chosen = frozenset(wanted)
    counts = storage.read_json(storage.join(plan.decisions, "counts.json")) or {}
    with beam.Pipeline(options=options) as pipeline:
        (
            pipeline
            | "Stretches" >> beam.Create([tuple(stretch) for stretch in plan.list_stretches()])
            | "Spread" >> beam.Reshuffle()
            | "Stretch" >> beam.Map(lambda values: Stretch(*values))
            | "Read" >> beam.FlatMap(steps.read_members, plan, chosen)
            .with_output_types(tuple[int, Any])
            | "By shard" >> beam.GroupByKey()
            | "Write" >> beam.Map(steps.write_shard, plan, counts.get("examples", 0))
        )  # fmt: skip
