"""The pipelines of a job: examine the pairs, count, decide about them, write shards."""

import argparse
import functools
import logging
from collections.abc import Iterable
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions
from apache_beam.options.pipeline_options_validator import PipelineOptionsValidator
from apache_beam.runners.runner import create_runner

from big_align.core.errors import UserError, put_in_a_line, suggest
from big_align.data.shared import storage
from big_align.prepare import steps
from big_align.prepare.on_beam import transforms
from big_align.prepare.on_beam.decisions import decide, list_stretches
from big_align.prepare.on_beam.parts import Flow, Stage, place_name, run_stages
from big_align.prepare.plan import JobPlan

__all__ = ["count", "decide", "examine", "read_options", "write"]

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
    """Examines all pairs."""
    with beam.Pipeline(options=options) as pipeline:
        (
            pipeline
            | "Files" >> beam.Create(files)
            | "Spread files" >> beam.Reshuffle()
            | "Open" >> beam.FlatMap(steps.open_file, plan)
            | "Plain" >> beam.Map(tuple).with_output_types(tuple[int, int, int])
            | "Spread" >> beam.Reshuffle()
            | "Examine" >> beam.Map(steps.examine, plan)
        )


def count(plan: JobPlan, parts: int, options: PipelineOptions) -> None:
    """Counts the tokens of all pairs, if a rule needs that, in so many parts."""
    read = Stage("texts", functools.partial(_read_texts, plan=plan), split=False)
    tally = Stage("tokens", functools.partial(_count_tokens, plan=plan), last=("tokens",))
    stages = [read] if plan.rules.tokens is None else [read, tally]
    folder = plan.parts_path(plan.counted, parts)
    found = run_stages(stages, folder, parts, options, "count")
    if plan.rules.tokens is not None:
        storage.write_json(storage.join(plan.counted, "tokens.json"), found.get("tokens", {}))


def _read_texts(flow: Flow, plan: JobPlan) -> None:
    texts = list_stretches(flow.pipeline, plan) | "Texts" >> beam.Map(steps.read_texts, plan)
    tokens, width = plan.rules.tokens is not None, plan.sketch_width
    if tokens:
        split = texts | "Split" >> beam.FlatMap(
            transforms.count_tokens, bool(width)
        ).with_output_types(tuple[bytes, int])
        flow.give("tokens", split, place_name, transforms.add_up)
    if width:
        sketched = (
            texts
            | "Sketch" >> beam.Map(steps.sketch_texts, width, tokens)
            | "Merge" >> beam.CombineGlobally(transforms.SumByName())
            | "Write sketches" >> beam.Map(steps.write_sketches, plan)
        )
        flow.note("sketched", sketched | "Nothing else" >> beam.Map(lambda _: {}))


def _count_tokens(flow: Flow, plan: JobPlan) -> None:
    tokens = flow.take("tokens", tuple[bytes, int])
    flow.note("tokens", tokens | "Tokens" >> transforms.CountTokens(bool(plan.sketch_width)))


def write(
    plan: JobPlan, wanted: list[int], shards: int, parts: int, options: PipelineOptions
) -> None:
    """Writes the wanted ones of so many shards, in parts, for which the input is read once."""
    read = functools.partial(_read_members, plan=plan, wanted=frozenset(wanted), shards=shards)
    write = functools.partial(_write_shards, plan=plan)
    stages = [Stage("members", read, split=False), Stage("shards", write, last=("members",))]
    folder = plan.parts_path(storage.join(plan.decisions, "shards"), parts)
    run_stages(stages, folder, parts, options)
    storage.remove(folder)


def _read_members(flow: Flow, plan: JobPlan, wanted: frozenset[int], shards: int) -> None:
    members = (
        list_stretches(flow.pipeline, plan)
        | "Read" >> beam.FlatMap(steps.read_members, plan, wanted)
        .with_output_types(tuple[int, Any])
    )  # fmt: skip
    flow.give("members", members, lambda member: (member[0] << 32) // shards)


def _write_shards(flow: Flow, plan: JobPlan) -> None:
    counts = storage.read_json(storage.join(plan.decisions, "counts.json")) or {}
    written = (
        flow.take("members", tuple[int, Any])
        | "By shard" >> beam.GroupByKey()
        | "Write" >> beam.Map(steps.write_shard, plan, counts.get("examples", 0))
    )
    flow.note("written", written | "No more" >> beam.Map(lambda _: {}))
