"""Groupings in parts: whatever their number, and wherever a job is killed, nothing changes."""

import dataclasses
import json
import pathlib
from collections import Counter

import pytest
from raw_pairs import SMALL, draw_image, make_rows, read_output, write_parquet

from big_align.core.errors import UserError
from big_align.prepare.inputs import find_inputs
from big_align.prepare.on_beam import job
from big_align.prepare.plan import JobPlan
from big_align.prepare.rules import Rules
from big_align.tools import prepare

beam = pytest.importorskip("apache_beam", reason="Apache Beam is not installed (.[prepare])")
from big_align.prepare.on_beam import parts, pipelines, transforms  # noqa: E402

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
def more(tmp_path_factory):
    rows = make_rows() + [(draw_image(4000 + n), f"der kleine Hund {n % 3} ist") for n in range(20)]
    return write_parquet(tmp_path_factory.mktemp("raw"), rows)


@pytest.fixture
def run(more, tmp_path, monkeypatch):
    """Runs a job in so many parts; returns its output."""
    listed = tmp_path / "drop.jsonl"
    keys = ["raw-00000-000000003", "raw-00001-000000007", "raw-00009-000000001"]
    listed.write_text("".join(json.dumps({"key": key, "reason": key[-1]}) + "\n" for key in keys))

    def run(name, count, *flags):
        monkeypatch.setattr(job, "_count_parts", lambda *_: count)
        flags = [f"--drop={listed}" if flag == "--drop" else flag for flag in flags]
        folder = tmp_path / name
        status = prepare.main([f"--input={more}", *SMALL, *flags, f"--output={folder}"])
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


def list_words():
    return [(word.encode(), n % 7) for n, word in enumerate("a b c a a d b e f a".split() * 30)]


def give_words(flow):
    words = flow.pipeline | beam.Create(list_words())
    flow.give("all", words.pipeline | "Again" >> beam.Create(list_words()), parts.place_name)
    flow.give("words", words, parts.place_name, transforms.add_up)


def add_words(flow):
    summed = flow.take("words", tuple[bytes, int]) | beam.CombinePerKey(sum)
    flow.note("sums", summed | beam.Map(lambda found: {found[0].decode(): found[1]}))
    seen = flow.take("all") | "Seen" >> beam.Map(lambda found: {f"{found[0].decode()}": [found[1]]})
    flow.note("seen", seen)


@pytest.mark.parametrize("count", [1, pytest.param(5, marks=pytest.mark.slow), 2])
def test_what_is_put_together_and_passed_in_many_files_is_all_there_once(
    count, tmp_path, monkeypatch
):
    monkeypatch.setattr(parts, "WRITTEN_BYTES", 100)
    monkeypatch.setattr(parts, "HELD", 3)
    stages = [
        parts.Stage("give", give_words, split=False),
        parts.Stage("add", add_words, last=("words",)),
    ]
    found = parts.run_stages(stages, str(tmp_path), count, pipelines.read_options([]), "words")
    right, seen = Counter(), {}
    for word, number in list_words():
        right[word.decode()] += number
        seen.setdefault(word.decode(), []).append(number)
    assert found["sums"] == right
    assert {word: sorted(some) for word, some in found["seen"].items()} == {
        word: sorted(some) for word, some in seen.items()
    }
    names = {path.name for path in tmp_path.iterdir()}
    assert names == ({"notes", "all"} if count > 1 else {"notes"})  # nobody takes words again
    assert count == 1 or len(list((tmp_path / "all").iterdir())) > 10
    if count > 1:
        for path in (tmp_path / "notes").glob("add-*"):
            path.unlink()
        with pytest.raises(UserError, match="is not there any more; run the same command again"):
            job.run_pipeline(
                parts.run_stages, stages, str(tmp_path), count, pipelines.read_options([]), "words"
            )


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


def test_the_number_of_parts_follows_from_the_size_and_the_memory(done):
    folder = pathlib.Path(done.output).parent
    rules = dataclasses.replace(Rules(), max_texts=5)
    plan = JobPlan(find_inputs(done.raw), done.output, f"{folder}/work", rules=rules)
    pairs = json.loads(read_output(done.output)["statistics.json"])["pairs"]
    assert plan.estimate_pairs() == pairs
    direct, whole = pipelines.read_options([]), 60_000
    for given, count in ((whole, 1), (whole - 1, 2), (whole // 7 + 1, 7), (1, whole)):
        assert job._count_parts(whole, direct, given) == count
    assert job._count_parts(0, direct, 1) == 1
    other = direct.from_dictionary({"runner": "apache_beam.runners.dask.dask_runner.DaskRunner"})
    assert job._count_parts(whole, other, 1) == 1
