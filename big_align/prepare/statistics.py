"""The numbers of a job, for people and programs."""

from collections import Counter
from typing import Any

from big_align.data.loading.broken import name_kind
from big_align.data.shared import storage
from big_align.prepare.plan import JobPlan
from big_align.prepare.rules import Rules, describe_rules
from big_align.prepare.sampling import choose_rates
from big_align.prepare.shards import count_shards
from big_align.prepare.sketch import SAMPLED


def make_statistics(plan: JobPlan) -> dict[str, Any]:
    """Returns the numbers of a job that has decided about its pairs."""
    counts = storage.read_json(storage.join(plan.decisions, "counts.json"))
    token_rule = plan.token_rule()
    told = describe_rules(plan.rules, token_rule.told if token_rule else "")
    if not plan.examination.classifier:
        del told["unsafe"]
    if not plan.listed:
        del told["listed"]
    rules = {
        name: {
            "drops": text,
            "fails": counts.get(f"fails {name}", 0),
            "first": counts.get(f"first {name}", 0),
        }
        for name, text in told.items()
    }
    lost = [broken for _, about in plan.read_files() for broken in about["broken"]]
    examples = counts.get("examples", 0)
    return {
        "sampled": bool(plan.sample),
        "input_files": len(plan.inputs.paths),
        "images": counts.get("images", 0),
        "different_images": counts.get("different_images", 0),
        "pairs": counts.get("pairs", 0),
        "different_texts": sum(_select(counts, "shared").values()),
        "kept_pairs": counts.get("kept", 0),
        "kept_images": examples,
        "bytes": counts.get("bytes", 0),
        "shards": 0 if plan.sample else count_shards(examples, plan.shard_size),
        "quarantined": counts.get("broken", 0) + sum(each["count"] for each in lost),
        "quarantined_by_kind": _select_texts(counts, "kind") | _count_lost(lost),
        "rules": rules,
        "listed_by_reason": _select_texts(counts, "listed"),
        "unknown_keys": counts.get("unknown_keys", 0),
        "unreadable_files": {x["input"]: x["reason"] for x in lost if x.get("whole_file")},
        "languages": _count_languages(counts, plan.rules),
        "tokens": {
            "counted": _tell_counts(plan),
            "rule": token_rule.told if token_rule else "no token is rare",
            "min_count": token_rule.min_count if token_rule else 0,
        },
        "counts": "sketch" if plan.sketch_width else "exact",
        "sketches": _read_sketches(plan),
        "classifier": plan.examination.classifier or "none: unsafe images are not looked for",
        "histograms": {
            "shorter_side": _select(counts, "side"),
            "aspect_ratio_tenths": _select(counts, "aspect"),
            "unigrams_of_a_text": _select(counts, "unigrams"),
            "images_of_a_text": _select(counts, "shared"),
            "texts_of_an_image": _select(counts, "crowded"),
        },
    }


def _read_sketches(plan: JobPlan) -> dict[str, dict[str, float]]:
    """Returns how much each sketch has counted, and how exactly."""
    if not plan.sketch_width:
        return {}
    return storage.read_json(storage.join(plan.counted, "sketches.json")) or {}


def _tell_counts(plan: JobPlan) -> str:
    if plan.rules.tokens is None:
        told = f"; how many images texts have is estimated from one in {SAMPLED}"
        return "not counted" + told * bool(plan.sketch_width)
    found = _read_sketches(plan).get("tokens")
    if not found:
        return "counted exactly"
    return (
        f"counted by a count-min sketch: a count is never too low, and with probability "
        f"{found['confidence']:.1%} at most {found['error']:,.3g} too high, so some rare tokens "
        f"may be taken for others; how many occur how often is estimated from one in {SAMPLED}, "
        "as is how many images texts have"
    )


def _count_languages(counts: dict[str, int], rules: Rules) -> dict[str, dict[str, Any]]:
    """Returns pairs of each language, those kept and dropped, and which fraction was drawn."""
    found = _select_texts(counts, "language")
    names = [name.removesuffix(" pairs") for name in found if name.endswith(" pairs")]
    tables = {}
    for name in names:
        pairs, kept = found[f"{name} pairs"], found.get(f"{name} kept", 0)
        tables[name] = {"pairs": pairs, "kept": kept, "dropped": pairs - kept}
        if rules.language_temperature is not None:
            tables[name]["sampled_out"] = found.get(f"{name} abundant", 0)
    if rules.language_temperature is not None:
        left = {name: each["kept"] + each["sampled_out"] for name, each in tables.items()}
        left = {name: count for name, count in left.items() if count}
        rates = choose_rates(left, rules.language_temperature, rules.language_floor)
        for name, each in tables.items():
            each["rate"] = rates.get(name, 1.0)
    return tables


def _select(counts: dict[str, int], name: str) -> dict[int, int]:
    """Returns the histogram of a name, by value, sorted."""
    found = {int(k): n for k, n in _select_texts(counts, name).items()}
    return dict(sorted(found.items()))


def _select_texts(counts: dict[str, int], name: str) -> dict[str, int]:
    found = {k.removeprefix(f"{name} "): n for k, n in counts.items() if k.startswith(f"{name} ")}
    return dict(sorted(found.items()))


def _count_lost(lost: list[dict[str, Any]]) -> dict[str, int]:
    kinds: Counter = Counter()
    for each in lost:
        kinds[name_kind(each["reason"])] += each["count"]
    return dict(kinds)
