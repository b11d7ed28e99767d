"""The laws of a count-min sketch, and jobs that count with one."""

import dataclasses
import itertools
import json
import math
import pickle
import random
from collections import Counter

import numpy as np
import pytest
from raw_pairs import SMALL, read_output

from big_align.core.errors import UserError
from big_align.prepare import sketch, text_rules
from big_align.prepare.inputs import find_inputs
from big_align.prepare.plan import JobPlan
from big_align.prepare.rules import Rules


def make_counts(seed, kinds=300):
    rng = random.Random(seed)
    return {b"%d" % rng.randrange(1000): rng.randrange(1, 50) for _ in range(kinds)}


def make_sketch(*several, width=64, depth=4):
    made = sketch.CountMinSketch(width, depth)
    for counts in several:
        made.add(counts)
    return made


@pytest.mark.parametrize("width", [1, 7, 64, 2**14])
def test_a_count_is_never_too_low_and_exact_where_nothing_collides(width):
    counts = make_counts(0)
    made = make_sketch(counts, width=width)
    found = dict(zip(counts, made.estimate(counts).tolist(), strict=True))
    assert all(found[thing] >= count for thing, count in counts.items())
    assert made.total == sum(counts.values())
    if width == 1:
        assert set(found.values()) == {made.total}
    if width == 2**14:
        assert found == counts and made.estimate([b"none"]).tolist() == [0]


def test_merging_is_counting_together_in_any_order():
    parts = [make_counts(seed) for seed in range(3)]
    whole = make_sketch(*parts).table
    one, two, three = map(make_sketch, parts)
    for first, second, third in itertools.permutations((one, two, three)):
        assert np.array_equal((first + second + third).table, whole)
        assert np.array_equal((first + (second + third)).table, whole)
    assert np.array_equal(one.table, make_sketch(parts[0]).table)  # merging leaves both alone
    assert np.array_equal(pickle.loads(pickle.dumps(one)).table, one.table)
    with pytest.raises(ValueError, match="sketches of"):
        one + make_sketch(width=32)


def test_what_is_sampled_is_a_fraction_by_the_thing_alone():
    things = [b"%d" % n for n in range(64_000)]
    picked = sum(map(sketch.is_sampled, things))
    assert abs(picked - 1000) < 5 * math.sqrt(1000)


def test_the_width_follows_from_the_memory():
    for megabytes in (1, 64, 100):
        width = sketch.choose_width(megabytes)
        size = sketch.CountMinSketch(width).table.nbytes
        assert size <= megabytes * 2**20 < 2 * size and width & (width - 1) == 0
    with pytest.raises(UserError, match="--sketch_megabytes=0 must be from 1"):
        sketch.choose_width(0)


@pytest.mark.parametrize(("width", "depth"), [(256, 3), (2048, 5)])
def test_the_bound_holds_on_real_alt_texts(width, depth, data_dir):
    path = data_dir / "text" / "alt_texts.txt"
    lines = path.read_text(encoding="utf-8").splitlines()[:4000]
    tokens = Counter(
        token for line in lines
        for token in text_rules.name_tokens(text_rules.split_unigrams(line), False)
    )  # fmt: skip
    made = make_sketch(tokens, width=width, depth=depth)
    over = made.estimate(tokens) - np.fromiter(tokens.values(), np.uint64)
    assert made.error() == pytest.approx(math.e * sum(tokens.values()) / width)
    assert over.max() < 2**63 and over.max() > 0
    assert made.confidence() == pytest.approx(1 - math.exp(-depth))
    assert np.mean(over > made.error()) <= math.exp(-depth)


def read_fails(path):
    found = json.loads(path.read_text())
    return found, {name: rule["fails"] for name, rule in found["rules"].items()}


@pytest.mark.slow
def test_a_job_with_a_large_sketch_makes_the_same_shards(done, run, tmp_path):
    flags = f"--input={done.raw}", *SMALL, "--counts=sketch", "--sketch_megabytes=1"
    assert run("out", *flags)[0] == 0
    exact, found = read_output(done.output), read_output(tmp_path / "out")
    shards = {name for name in exact if name.endswith(".tar")}
    assert shards and all(exact[name] == found[name] for name in shards)
    statistics, _ = read_fails(tmp_path / "out" / "statistics.json")
    assert statistics["counts"] == "sketch" and json.loads(exact["statistics.json"])[
        "counts"] == "exact"  # fmt: skip
    assert 0 < statistics["sketches"]["tokens"]["error"] < 1
    assert "by a count-min sketch" in (tmp_path / "out" / "report.html").read_text()


@pytest.mark.slow
def test_a_small_sketch_keeps_rare_tokens_and_changes_nothing_else(done, tmp_path):
    pipelines = pytest.importorskip("big_align.prepare.on_beam.pipelines")
    from big_align.prepare.on_beam import job

    rules = dataclasses.replace(Rules(), max_texts=5)
    plan = JobPlan(find_inputs(done.raw), f"{tmp_path}/out", f"{tmp_path}/work", rules=rules,
                   shard_size=15, sketch_width=64)  # fmt: skip
    job.run(plan, pipelines.read_options([]))
    _, exact = read_fails(tmp_path.__class__(done.output) / "statistics.json")
    _, found = read_fails(tmp_path / "out" / "statistics.json")
    assert found.pop("rare") <= exact.pop("rare")
    changed = ("repeated",)  # it is asked of what is left
    assert {k: n for k, n in found.items() if k not in changed} == {
        k: n for k, n in exact.items() if k not in changed
    }
