"""The stages of deciding about all pairs: what is grouped by which key."""

import functools
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

from big_align.data.shared import storage
from big_align.prepare import steps
from big_align.prepare.inputs import Stretch
from big_align.prepare.on_beam import transforms
from big_align.prepare.on_beam.parts import Flow, Stage, place_name, run_stages
from big_align.prepare.plan import JobPlan
from big_align.prepare.sampling import choose_rates
from big_align.prepare.sketch import is_sampled
from big_align.prepare.text_rules import identify_text


def decide(plan: JobPlan, parts: int, options: PipelineOptions) -> None:
    """Decides about all pairs, and which shard each goes to, in so many parts."""
    folder = plan.parts_path(plan.decisions, parts)
    found = run_stages(list_stages(plan, parts), folder, parts, options, "decide")
    samples = {
        name: [shown[1:] for shown in sorted(some)[: transforms.SHOWN]]
        for name, some in found.get("samples", {}).items()
    }
    storage.write_json(storage.join(plan.decisions, "samples.json"), samples)
    storage.write_json(storage.join(plan.decisions, "counts.json"), found.get("counts", {}))


def list_stages(plan: JobPlan, parts: int) -> list[Stage]:
    """Returns the stages that a job needs, in order."""
    rare = plan.rules.tokens is not None and not plan.sketch_width and plan.token_rule()
    sampled = plan.rules.language_temperature is not None and parts > 1
    stages = [
        ("pairs", _read_pairs, True),
        ("tokens", _find_rare, rare),
        ("keys", _find_listed, plan.listed),
        ("texts", _judge_texts, True),
        ("languages", _count_languages, sampled),
        ("images", _decide_images, True),
        ("order", _rank, not plan.sample),
        ("rows", _note_rows, not plan.sample),
    ]
    return [
        Stage(name, functools.partial(build, plan=plan), name != "pairs", TAKEN.get(name, ()))
        for name, build, needed in stages
        if needed
    ]


TAKEN = {
    "tokens": ("tokens",),
    "keys": ("keys", "named"),
    "texts": ("texts", "rare"),
    "images": ("judged", "listed"),
    "order": ("kept",),
    "rows": ("rows",),
}
"""What no stage takes any more when one has ended."""


def list_stretches(pipeline: beam.Pipeline, plan: JobPlan) -> beam.PCollection:
    """Returns all stretches, spread over the workers."""
    return (
        pipeline
        | "Stretches" >> beam.Create([tuple(stretch) for stretch in plan.list_stretches()])
        | "Spread" >> beam.Reshuffle()
        | "Stretch" >> beam.Map(lambda values: Stretch(*values))
    )


def _read_pairs(flow: Flow, plan: JobPlan) -> None:
    """Gives pairs by text, tokens of texts, and images by key.

    If a sketch has counted texts, only those that may belong to too many images are grouped, and a
    sample of the others; rare tokens have been found already.
    """
    stretches = list_stretches(flow.pipeline, plan)
    pairs = stretches | "Pairs" >> beam.FlatMap(steps.read_pairs, plan).with_output_types(
        tuple[bytes, Any]
    )
    flow.note("counts", stretches | "Measure" >> beam.Map(steps.measure, plan))
    keyed = pairs | "By text id" >> beam.Map(
        lambda found: (identify_text(found[1][3]), found)
    ).with_output_types(tuple[bytes, Any])
    if plan.sketch_width:
        others = (
            keyed
            | "No suspects" >> beam.Filter(lambda found: not steps.is_suspect(found, plan))
            | "As they are" >> beam.Map(lambda found: found[1]).with_output_types(tuple[bytes, Any])
        )
        flow.give("judged", others)
        keyed = keyed | "Suspects and a sample" >> beam.Filter(
            lambda found: steps.is_suspect(found, plan) or is_sampled(found[0])
        )
    flow.give("texts", keyed)
    rule = None if plan.sketch_width else plan.token_rule()
    if rule:
        tokens = (
            keyed
            | "Texts of words" >> beam.Filter(_is_real)
            | "Words" >> beam.Map(lambda found: (found[0], found[1][1][3]))
            .with_output_types(tuple[bytes, str])
            | "Tokens" >> beam.FlatMap(transforms.list_tokens, rule.bigrams)
            .with_output_types(tuple[bytes, Any])
        )  # fmt: skip
        together = functools.partial(transforms.leave_out_texts, min_count=rule.min_count)
        flow.give("tokens", tokens, place_name, together)
    if plan.listed:
        listed = flow.pipeline | "Listed keys" >> beam.Create(
            sorted(steps.read_listed(plan.listed).items())
        ).with_output_types(tuple[str, str])
        flow.give("keys", listed, place_name)
        named = pairs | "By key" >> beam.Map(
            lambda found: (plan.inputs.key(*found[1][:2]), found[0])
        ).with_output_types(tuple[str, bytes])
        flow.give("named", named, place_name)


def _find_rare(flow: Flow, plan: JobPlan) -> None:
    """Gives texts with a rare token."""
    rule = plan.token_rule()
    assert rule is not None, "else there is no such stage"
    flow.give("rare", flow.take("tokens") | transforms.FindRareTexts(rule.min_count))


def _find_listed(flow: Flow, plan: JobPlan) -> None:
    """Gives images that are listed by a key of one of their pairs."""
    given = {
        "listed": flow.take("keys", tuple[str, str]),
        "images": flow.take("named", tuple[str, bytes]),
    }
    joined = given | "Join keys" >> beam.CoGroupByKey()
    listed = joined | "Listed" >> beam.FlatMap(_list_images).with_output_types(tuple[bytes, str])
    flow.give("listed", listed)
    unknown = joined | "Unknown keys" >> beam.Map(
        lambda found: {"unknown_keys": int(not _has(found, "images"))}
    )
    flow.note("counts", unknown)


def _judge_texts(flow: Flow, plan: JobPlan) -> None:
    """Applies the rules about texts that need all pairs, and gives these by image."""
    keyed = flow.take("texts")
    suspects = keyed
    if plan.sketch_width:
        suspects = keyed | "Suspects" >> beam.Filter(steps.is_suspect, plan)
    partners = (
        keyed
        | "Texts alone" >> beam.Filter(_is_real)
        | "Text and image" >> beam.Map(lambda found: (found[0], found[1][0]))
        .with_output_types(tuple[bytes, bytes])
    )  # fmt: skip
    shared = _find_many(flow, partners, plan.rules.max_images, "shared", bool(plan.sketch_width))
    failed = [*shared, flow.take("rare", tuple[bytes, str])]
    judged = (
        {"pairs": suspects, "failed": failed | "Failed texts" >> beam.Flatten()}
        | "By text" >> beam.CoGroupByKey()
        | "Judge texts" >> beam.FlatMap(transforms.judge_text).with_output_types(tuple[bytes, Any])
    )
    flow.give("judged", judged)


def _group_images(flow: Flow, plan: JobPlan, noted: bool = True) -> beam.PCollection:
    """Returns the pairs of each image, and why it is dropped, if it is."""
    judged = flow.take("judged")
    partners = (
        judged
        | "Real" >> beam.Filter(lambda found: found[1][2] >= 0)
        | "Image and text" >> beam.Map(lambda found: (found[0], identify_text(found[1][3])))
        .with_output_types(tuple[bytes, bytes])
    )  # fmt: skip
    crowded = _find_many(flow, partners, plan.rules.max_texts, "crowded", noted=noted)
    reasons = [*crowded, flow.take("listed", tuple[bytes, str])]
    return (
        {"pairs": judged, "reasons": reasons | "Reasons" >> beam.Flatten()}
        | "By image" >> beam.CoGroupByKey()
        | "Has pairs" >> beam.Filter(_has, "pairs")
    )


def _count_languages(flow: Flow, plan: JobPlan) -> None:
    """Notes how many pairs of each language no rule drops, before these are sampled."""
    left = _group_images(flow, plan, noted=False) | "Left by language" >> beam.Map(
        transforms.count_languages, plan.rules
    )
    flow.note("left", left)


def _choose_rates(flow: Flow, images: beam.PCollection, plan: JobPlan) -> Any:
    """Returns which fraction of each language is kept, if languages are sampled."""
    temperature, floor = plan.rules.language_temperature, plan.rules.language_floor
    if temperature is None:
        return None
    if flow.parts > 1:
        return choose_rates(flow.found.get("left", {}), temperature, floor)
    rates = (
        images
        | "Left by language" >> beam.Map(transforms.count_languages, plan.rules)
        | "Languages" >> beam.CombineGlobally(transforms.SumByName())
        | "Rates" >> beam.Map(choose_rates, temperature, floor)
    )
    return beam.pvalue.AsSingleton(rates)


def _decide_images(flow: Flow, plan: JobPlan) -> None:
    """Decides about the pairs of each image, and gives those that are kept by their order."""
    images = _group_images(flow, plan)
    decided = images | "Decide" >> beam.FlatMap(
        transforms.decide, _choose_rates(flow, images, plan), plan
    ).with_output_types(tuple[str, Any])
    flow.note("counts", _select(decided, "counts"))
    samples = (
        _select(decided, "samples")
        | "Name" >> beam.Map(lambda found: found).with_output_types(tuple[str, Any])
        | "Some" >> beam.combiners.Top.SmallestPerKey(transforms.SHOWN)
        | "Plain samples" >> beam.Map(
            lambda found: {found[0]: [[order.hex(), *pair] for order, *pair in found[1]]}
        )
    )  # fmt: skip
    flow.note("samples", samples)
    if not plan.sample:
        flow.give("kept", _select(decided, "kept"))


def _rank(flow: Flow, plan: JobPlan) -> None:
    """Gives the examples that are written, and their places in shards, by stretch."""
    ranked = flow.take("kept", Any) | transforms.Rank()
    if flow.parts > 1:  # ranks are those of this part
        counts = flow.count_by_part("kept")
        start, total = sum(counts[: flow.part]), sum(counts)
        ranked = ranked | "Rank of all" >> beam.Map(
            lambda found: (start + found[0], total, found[2])
        )
    placed = ranked | "Place" >> beam.Map(steps.place_example, plan).with_output_types(
        tuple[tuple[int, int], Any]
    )
    flow.give("rows", placed, place_name)


def _note_rows(flow: Flow, plan: JobPlan) -> None:
    """Notes which rows of each stretch are written."""
    rows = flow.take("rows", tuple[tuple[int, int], Any])
    written = rows | "By stretch" >> beam.GroupByKey() | beam.Map(steps.write_placed, plan)
    flow.note("rows", written | "No more" >> beam.Map(lambda _: {}))


def _find_many(
    flow: Flow,
    partners: beam.PCollection,
    most: int | None,
    rule: str,
    sampled: bool = False,
    noted: bool = True,
) -> list[beam.PCollection]:
    """Returns what has too many partners: texts their images, or images their texts.

    These are lists of (key, rule). How many keys have how many partners is noted; if the keys are a
    sample, this is estimated from it.
    """
    counts = partners | f"Partners: {rule}" >> transforms.CountPartners()
    if noted:
        weigh = beam.Map(transforms.weigh_partners, rule, sampled)
        flow.note("counts", counts | f"Frequency: {rule}" >> weigh)
    if most is None:
        return []
    return [
        counts
        | f"Too many: {rule}" >> beam.Filter(lambda found: found[1] > most)
        | f"Say {rule}" >> beam.Map(lambda found: (found[0], rule))
        .with_output_types(tuple[bytes, str])
    ]  # fmt: skip


def _select(decided: beam.PCollection, kind: str) -> beam.PCollection:
    return (
        decided
        | f"Find {kind}" >> beam.Filter(lambda found: found[0] == kind)
        | f"Take {kind}" >> beam.Map(lambda found: found[1])
    )


def _list_images(joined: tuple[str, dict[str, Any]]) -> list[tuple[bytes, str]]:
    _, found = joined
    images = sorted(set(found["images"]))
    return [(image, f"listed {reason}") for image in images for reason in found["listed"]]


def _has(joined: tuple[Any, dict[str, Any]], kind: str) -> bool:
    """Returns whether something of a kind was joined under a key."""
    return any(True for _ in joined[1][kind])


def _is_real(found: tuple[bytes, tuple[bytes, tuple]]) -> bool:
    """Returns whether a pair, by the id of its text, has a text."""
    return found[1][1][2] >= 0
