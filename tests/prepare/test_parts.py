"""Groupings in parts: whatever their number, and wherever a job is killed, nothing changes."""

import dataclasses
import json
import pathlib
from collections import Counter

import pytest
from raw_pairs import SMALL, draw_image, make_rows, read_output, write_parquet

from big_align.prepare import job
from big_align.prepare.inputs import find_inputs
from big_align.prepare.plan import JobPlan
from big_align.prepare.rules import Rules
from big_align.tools import prepare

pytest.importorskip("apache_beam", reason="Apache Beam is not installed (.[prepare])")
from big_align.prepare import parts  # noqa: E402

LANGUAGES = "--languages=big_align.data.text.languages:identify_language"
KINDS = {
    "exact": (),
    "bigrams": ("--tokens=100",),
    "languages": (LANGUAGES, "--language_temperature=2", "--language_floor=1"),
    "listed": ("--drop",),
    "sketch": ("--counts=sketch", "--sketch_megabytes=1"),
    "none": ("--rules=none",),
}


@pytest.fixture(scope="module")
def raw(tmp_path_factory):
    rows = make_rows() + [(draw_image(4000 + n), f"der kleine Hund {n % 3} ist") for n in range(20)]
    return write_parquet(tmp_path_factory.mktemp("raw"), rows)


@pytest.fixture
def run(raw, tmp_path, monkeypatch):
    """Runs a job in so many parts; returns its output."""
    listed = tmp_path / "drop.jsonl"
    keys = ["raw-00000-000000003", "raw-00001-000000007", "raw-00009-000000001"]
    listed.write_text("".join(json.dumps({"key": key, "reason": key[-1]}) + "\n" for key in keys))

    def run(name, count, *flags):
        monkeypatch.setattr(job, "_count_parts", lambda *_: count)
        flags = [f"--drop={listed}" if flag == "--drop" else flag for flag in flags]
        folder = tmp_path / name
        status = prepare.main([f"--input={raw}", *SMALL, *flags, f"--output={folder}"])
        return status, read_output(folder)

    return run


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_any_number_of_parts_makes_the_same_bytes(run, kind):
    status, whole = run("1", 1, *KINDS[kind])
    statistics = json.loads(whole["statistics.json"])
    assert status == 0 and statistics["kept_pairs"] > 20
    rare = statistics["rules"].get("rare", {"fails": 0})["fails"]
    assert (rare > 0) == (kind != "none")
    if kind == "languages":
        assert statistics["rules"]["abundant"]["first"] > 0
    assert statistics["unknown_keys"] == (kind == "listed")
    for count in (2, 7) if kind == "exact" else (3,):
        assert run(str(count), count, *KINDS[kind]) == (0, whole)


@pytest.mark.slow
def test_two_workers_in_parts_make_the_same_bytes(run):
    workers = "--direct_running_mode=multi_threading", "--direct_num_workers=2"
    assert run("two", 3, *workers) == run("one", 1)


class Killed(BaseException):
    """What ends a job here, as a signal would."""


@pytest.mark.slow
def test_a_job_goes_on_at_the_part_where_it_was_killed(run, monkeypatch, tmp_path):
    whole, begun, ended, inner = run("whole", 1), [], [], parts.Flow.end

    def end(self, path):
        begun.append(path)
        if len(begun) % 5 == 0:  # every fifth pipeline is killed before it has begun
            raise Killed
        inner(self, path)
        ended.append(path)

    monkeypatch.setattr(parts.Flow, "end", end)
    for _ in range(30):
        try:
            found = run("killed", 3)
            break
        except Killed:
            assert not (tmp_path / "killed" / "settings.json").exists()
    assert found == whole and len(begun) > len(ended) + 3
    assert max(Counter(ended).values()) == 1  # what was done is not done again
    assert not (tmp_path / "killed" / "work").exists()


def test_the_number_of_parts_follows_from_the_pairs_and_the_memory(done):
    from big_align.prepare import pipelines

    folder = pathlib.Path(done.output).parent
    rules = dataclasses.replace(Rules(), max_texts=5)
    plan = JobPlan(find_inputs(done.raw), done.output, f"{folder}/work", rules=rules)
    pairs = plan.estimate_pairs()
    assert pairs == json.loads(read_output(done.output)["statistics.json"])["pairs"]
    direct = pipelines.read_options([])
    whole = pairs * job.PAIR_BYTES
    for given, count in ((whole, 1), (whole - 1, 2), (whole // 7 + 1, 7), (1, whole)):
        assert job._count_parts(plan, direct, given) == count
    other = direct.from_dictionary({"runner": "apache_beam.runners.dask.dask_runner.DaskRunner"})
    assert job._count_parts(plan, other, 1) == 1
