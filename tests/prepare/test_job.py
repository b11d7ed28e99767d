"""A job drops what a brute force drops, and its shards are the same however it was run."""

import dataclasses
import json
import logging
import math
import os
import pathlib
import sys
from collections import Counter

import brute_force
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from plain_job import write_plainly
from raw_pairs import (
    BOILERPLATE,
    draw_image,
    make_rows,
    read_output,
    read_tar,
    write_parquet,
)

from big_align.core.errors import UserError
from big_align.data.shared import storage
from big_align.data.sources.tar_source import TarSource
from big_align.prepare.examination import identify_image
from big_align.prepare.inputs import find_inputs
from big_align.prepare.on_beam import job
from big_align.prepare.plan import JobPlan
from big_align.prepare.rules import Rules
from big_align.tools import prepare
from tests.data.samples import encode_image, make_pixels, write_tar

PICTURE = pathlib.Path(__file__).parents[2] / "docs" / "search.jpg"


def can_be_read(row):
    image, text = row
    return bool(image) and image not in (b"not an image", draw_image(1)[:300]) and bool(text)


def read_statistics(folder):
    return json.loads((pathlib.Path(folder) / "statistics.json").read_text())


def read_keys(folder):
    tars = pathlib.Path(folder).glob("pairs-*.tar")
    return {name.partition(".")[0] for tar in tars for name in read_tar(tar)}


def test_counts_are_those_of_a_brute_force_and_nothing_is_lost(done):
    found = read_statistics(done.output)
    rows = list(filter(can_be_read, make_rows()))
    failed, pairs, images = brute_force.count(rows, Rules(max_texts=5), min_count=2)
    told = {name: rule["fails"] for name, rule in found["rules"].items() if rule["fails"]}
    assert told == failed and min(failed.values()) >= 1 and len(failed) == 8
    assert (found["kept_pairs"], found["kept_images"]) == (pairs, images)
    dropped = sum(rule["first"] for rule in found["rules"].values())
    assert dropped + found["kept_pairs"] == found["pairs"] == len(rows)
    assert found["pairs"] + found["quarantined"] == len(make_rows())
    lines = pathlib.Path(done.output, "quarantine.jsonl").read_text().splitlines()
    assert sum(json.loads(line)["count"] for line in lines) == found["quarantined"] == 4


def test_shards_open_with_the_tar_source_and_are_balanced(done):
    found = read_statistics(done.output)
    shards = TarSource(f"{done.output}/pairs-*.tar", caption="json.captions")
    sizes = shards.shard_sizes.tolist()
    assert sum(sizes) == found["kept_images"] and len(sizes) == found["shards"] > 1
    assert max(sizes) - min(sizes) <= 1 and max(sizes) <= 15 and not shards.broken.any()
    read = [shards.read(s, n) for s, size in enumerate(sizes) for n in range(size)]
    assert sum(len(example.captions) for example in read) == found["kept_pairs"]
    assert not any(BOILERPLATE in example.captions for example in read)
    raw_images = {image for image, _ in make_rows()}
    assert all(example.image in raw_images for example in read)
    assert sum(len(example.image) for example in read) == found["bytes"]


def test_keys_say_where_a_pair_comes_from(done):
    rows, merged = make_rows(), 0
    size = -(-len(rows) // 3)
    for tar in pathlib.Path(done.output).glob("pairs-*.tar"):
        members = read_tar(tar)
        for name in (name for name in members if name.endswith(".json")):
            about, key = json.loads(members[name]), name.removesuffix(".json")
            origin = about["origin"]
            file = int(origin["input"][-13:-8])
            image, text = rows[file * size + origin["row"]]  # counted with those without an image
            assert key == f"raw-{file:05d}-{origin['row']:09d}"
            assert image in (members.get(f"{key}.jpg"), members.get(f"{key}.png"))
            assert " ".join(text.replace("&amp;", "&").split()) == about["captions"][0]
            assert members[f"{key}.txt"].decode() == about["captions"][0]
            merged += len(about.get("merged", []))
    assert merged == 1  # the other text of an image that stands twice


def test_shards_are_those_of_plain_loops(done, tmp_path):
    rules = dataclasses.replace(Rules(), max_texts=5)
    plan = JobPlan(
        find_inputs(done.raw), f"{tmp_path}/out", f"{tmp_path}/work", rules=rules, shard_size=15
    )
    fails = write_plainly(plan)
    told = {name: rule["fails"] for name, rule in read_statistics(done.output)["rules"].items()}
    assert fails == Counter(told) and fails["crowded"] == 8
    shards = {k: data for k, data in read_output(done.output).items() if k.endswith(".tar")}
    assert read_output(tmp_path / "out") == shards


def test_a_finished_job_is_not_done_again_and_another_is_refused(done, capsys):
    first = read_output(done.output)
    times = {path: path.stat().st_mtime_ns for path in pathlib.Path(done.output).glob("*.tar")}
    assert prepare.main([*done.flags, f"--output={done.output}"]) == 0
    out = capsys.readouterr().out
    assert "was finished before" in out and "pairs kept" in out
    assert read_output(done.output) == first
    assert all(path.stat().st_mtime_ns == time for path, time in times.items())
    assert prepare.main([*done.flags, f"--output={done.output}", "--min_side=100"]) == 1
    error = capsys.readouterr().err
    assert "made with other settings (rules.min_side is 200 there and 100 now)" in error


@pytest.mark.slow
def test_other_numbers_use_what_was_examined_and_listed_keys_are_dropped(done, run, tmp_path):
    keys = sorted(read_keys(done.output))
    lines = [{"key": keys[0], "reason": "test"}, {"key": keys[5]}, {"key": "none-000000001"}]
    (tmp_path / "drop.jsonl").write_text("\n".join(map(json.dumps, lines)))
    work = pathlib.Path(done.output).parent / "work"
    facts = {path: path.stat().st_mtime_ns for path in work.glob("facts-*/facts/*")}
    assert run("less", *done.flags, "--seed=1", f"--drop={tmp_path}/drop.jsonl")[0] == 0
    assert facts and facts == {p: p.stat().st_mtime_ns for p in work.glob("facts-*/facts/*")}
    assert set(keys) - read_keys(tmp_path / "less") == {keys[0], keys[5]}
    reasons = read_statistics(tmp_path / "less")["listed_by_reason"]
    assert reasons["test"] >= 1 and reasons["listed"] >= 1 and len(reasons) == 2
    paths = [pathlib.Path(folder, "pairs-00000.tar") for folder in (done.output, tmp_path / "less")]
    assert set(read_tar(paths[0])) != set(read_tar(paths[1]))  # another seed


@pytest.mark.slow
def test_a_shard_of_records_that_is_missing_is_written_again(done, run, tmp_path):
    flags = *done.flags, "--format=tfrecord"
    assert run("out", *flags)[0] == 0
    first = read_output(tmp_path / "out")
    shards = sorted(name for name in first if name.endswith(".tfrecord"))
    assert [f"{name.partition('.')[0]}.tar" for name in shards] == sorted(
        name for name in read_output(done.output) if name.endswith(".tar")
    )
    (tmp_path / "out" / shards[0]).unlink()
    time = (tmp_path / "out" / shards[1]).stat().st_mtime_ns
    status, out, _ = run("out", *flags)
    assert status == 0 and "was finished before" not in out
    assert read_output(tmp_path / "out") == first
    assert (tmp_path / "out" / shards[1]).stat().st_mtime_ns == time


def is_dark(pixels: np.ndarray) -> str | None:
    return "dark" if pixels.mean() < 30 else None


def name_language(text: str) -> str:
    return "en" if text.isascii() else "other"


@pytest.mark.slow
def test_members_of_tar_shards_are_kept(run, tmp_path):
    """Of an example that lacks them, or has no JSON, nothing but them is missing."""
    members = []
    for n in range(6):
        key, about = f"{n:05d}", json.dumps({"url": f"https://a.test/{n}", "more": {"x": n}})
        members += [(f"{key}.png", draw_image(2 * n)), (f"{key}.txt", b"old dog and cat")]
        members += [(f"{key}.json", {2: b"{", 3: None}.get(n, about.encode()))]
    write_tar(tmp_path / "x.tar", [member for member in members if member[1] is not None])
    flags = f"--input={tmp_path}/x.tar", "--rules=none"
    assert run("out", *flags, "--keep=json.url,json.more.x")[0] == 0
    found = {}
    for path in (tmp_path / "out").glob("*.tar"):
        for name, data in read_tar(path).items():
            if name.endswith(".json"):
                about = json.loads(data)
                found[about["origin"]["row"]] = about["columns"]
    there = {n: {"json.url": f"https://a.test/{n}", "json.more.x": n} for n in range(6)}
    none = {"json.url": None, "json.more.x": None}
    assert found == there | {2: none, 3: none}
    status, _, error = run("other", *flags, "--keep=json.ulr")
    assert (status, error) == (
        1, "error: --keep=json.ulr: none of the first 6 examples of x.tar has it\n"
    )  # fmt: skip


@pytest.mark.slow
def test_a_classifier_and_languages_are_functions_of_the_user(done, run, tmp_path):
    module = "tests.prepare.test_job"
    flags = f"--classifier={module}:is_dark", f"--languages={module}:name_language"
    assert run("out", f"--input={done.raw}", "--keep=url", *flags)[0] == 0
    found = read_statistics(tmp_path / "out")
    rows = list(filter(can_be_read, make_rows()))
    dark = sum(identify_image(image)[1].mean() < 30 for image, _ in rows)
    assert found["rules"]["unsafe"]["fails"] == dark > 0
    kept = found["kept_pairs"]
    told = {"pairs": len(rows), "kept": kept, "dropped": len(rows) - kept}
    assert found["languages"] == {"en": told}
    members = read_tar(tmp_path / "out" / "pairs-00000.tar")
    about = json.loads(next(data for name, data in members.items() if name.endswith(".json")))
    assert about["languages"] == ["en"] * len(about["captions"])
    files = {json.loads(data)["origin"]["input"][-9:-8]: json.loads(data)["columns"]["url"]
             for name, data in members.items() if name.endswith(".json")}  # fmt: skip
    assert len(files) == 3
    assert all(url.startswith(f"https://a.test/{file}/") for file, url in files.items())


@pytest.mark.slow
def test_a_dry_run_writes_the_report_alone(done, run, tmp_path):
    status, out, _ = run("out", f"--input={done.raw}", "--dry_run", "--sample=30")
    assert status == 0 and "dry_run_report.html" in out
    found = json.loads((tmp_path / "out" / "dry_run_statistics.json").read_text())
    assert found["sampled"] and 20 <= found["pairs"] <= 40
    names = {path.name for path in (tmp_path / "out").iterdir()}
    written = {"report.html", "statistics.json", "quarantine.jsonl"}
    assert names == {f"dry_run_{name}" for name in written}  # those of a job are left alone
    page = (tmp_path / "out" / "dry_run_report.html").read_text()
    assert "Dry run" in page and "see the sample alone" in page


@pytest.mark.slow
def test_what_data_say_is_text_and_never_markup(run, tmp_path):
    rows = [(draw_image(n), f"<script>{n}</script> & <b>{'x' * 300} dog") for n in range(4)]
    raw = write_parquet(tmp_path / "<i>raw", rows, files=1)
    assert run("out", f"--input={raw}", "--rules=none")[0] == 0
    page = (tmp_path / "out" / "report.html").read_text()
    assert "<script>" not in page and "&lt;script&gt;" in page and "<i>raw" not in page
    kept = TarSource(f"{tmp_path}/out/pairs-*.tar")
    assert {kept.read(0, n).captions[0] for n in range(4)} == {text for _, text in rows}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--rules=algin"], "--rules=algin is not align or none (did you mean 'align'?)"),
        (["--min_sid=100"], "unknown flag --min_sid (did you mean '--min_side'?)"),
        (["--input_argument=caption=alt"], "has no column 'alt'; it has 'jpg', 'caption', 'url'"),
        (["--keep=address"], "--keep=address: none of the first "),
        (["--language_temperature=2"], "samples by language, and no pair has one"),
        (["--drop=none.jsonl"], "--drop=none.jsonl cannot be read: there is no such file"),
        (["--classifier=tests:none"], "--classifier = 'tests:none' cannot be imported"),
        (["--languages=words"], "--languages=words does not read as module:function"),
        (["--shard_size=0"], "--shard_size=0 must be at least 1"),
        (["--min_unigrams=21"], "min_unigrams is 21 and max_unigrams 20"),
        (["--input_name=parket"], "did you mean 'parquet'?"),
        ([f"--drop={PICTURE}"], f"--drop={PICTURE}, line 1 is not UTF-8 (byte 0xff at 0)"),
    ],
)
def test_a_mistake_is_one_line(raw, run, flags, message):
    status, _, error = run("out", f"--input={raw}", *flags)
    assert status in (1, 2) and message in error
    assert error.startswith("error: ") and error.strip().count("\n") == 0


def test_an_output_without_a_name_is_not_the_root(raw, capsys, monkeypatch):
    monkeypatch.setattr(job, "run", None)
    assert prepare.main([f"--input={raw}", "--output="]) == 2
    assert "--output= is empty; name the folder" in capsys.readouterr().err


@pytest.mark.slow
def test_a_mistake_does_not_take_the_output(raw, run):
    flags = f"--input={raw}", "--rules=none"
    assert run("out", *flags, "--input_argument=caption=alt")[0] == 1
    assert run("out", *flags, "--language_temperature=2")[0] == 1
    assert run("out", *flags, "--input_argument=caption=caption")[0] == 0
    status, _, error = run("out", *flags, "--seed=3")
    told = "inputs.arguments is ['caption=caption'] there and [] now; seed is 0 there and 3 now"
    assert status == 1 and told in error


@pytest.mark.parametrize("labeled", [pytest.param(True, marks=pytest.mark.slow), False])
def test_images_without_texts_are_told_to_name_them_unless_they_have_classes(
    run, tmp_path, labeled
):
    for number, name in enumerate(("cat", "dog")):
        folder = tmp_path / "raw" / (name if labeled else "")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.png").write_bytes(encode_image(make_pixels(number)))
    status, out, _ = run("out", f"--input={tmp_path}/raw", "--rules=none")
    assert status == 0
    assert ("no image has a text: name them with --input_argument=caption" in out) == (not labeled)
    assert ("out/classes.txt" in out) == labeled


def test_what_cannot_be_used_is_told(raw, run, tmp_path):
    (tmp_path / "raw-00003.parquet").write_bytes(b"no table")
    paths, listed = f"{raw},{tmp_path}/raw-00003.parquet", tmp_path / "drop.jsonl"
    keys = find_inputs(paths).key(0, 1), "of no \ud800 image"
    listed.write_text("\n".join(json.dumps({"key": key}) for key in keys))
    flags = f"--input={paths}", "--rules=none", f"--drop={listed}"
    status, out, _ = run("out", *flags)
    assert status == 0
    assert f"1 of 4 files cannot be read; the first, {tmp_path}/raw-00003.parquet: " in out
    assert f"1 of 2 keys of {listed} belong to no image" in out


@pytest.mark.parametrize(
    "line", ['{"key": 5}', '{"key": "a", "reason": 7}', "[]", "{", '{"reason": "x"}']
)
def test_a_list_of_keys_is_checked(raw, run, tmp_path, line):
    (tmp_path / "drop.jsonl").write_text(f'{{"key": "a"}}\n\n{line}\n')
    status, _, error = run("out", f"--input={raw}", f"--drop={tmp_path}/drop.jsonl")
    assert status == 1 and f"{tmp_path}/drop.jsonl, line 3: each line is" in error
    assert error.strip().count("\n") == 0


@pytest.mark.parametrize(
    "flags", [[], pytest.param(["--runner=DirectRunner"], marks=pytest.mark.slow)]
)
def test_no_program_is_downloaded_to_run_a_job(raw, run, flags, monkeypatch):
    """Beam's DirectRunner first tries Prism, and falls back in silence."""
    from apache_beam.runners.portability.prism_runner import PrismRunner

    tried = []
    monkeypatch.setattr(PrismRunner, "run_pipeline", lambda *_: tried.append(1) or 1 / 0)
    assert run("out", f"--input={raw}", "--rules=none", *flags)[0] == 0
    assert tried == []


def test_numbers_of_the_command_line_stand_above_the_preset():
    options, rest = prepare.make_parser().parse_known_args(
        ["--input=x", "--output=y", "--rules=none", "--min_side=64", "--tokens=1_000", "--runner=R"]
    )
    rules = prepare.make_rules(options)
    assert (rules.min_side, rules.tokens, rules.scale_tokens) == (64, 1000, False)
    assert rules.max_texts is None and rest == ["--runner=R"]
    flags = ["--input=x", "--output=y", "--max_aspect=none"]
    options, _ = prepare.make_parser().parse_known_args(flags)
    assert prepare.make_rules(options) == dataclasses.replace(Rules(), max_aspect=None)


@pytest.mark.parametrize(
    ("written", "temperature"), [("inf", math.inf), ("none", None), ("3", 3.0)]
)
def test_an_endless_temperature_is_no_missing_one(written, temperature):
    flags = ["--input=x", "--output=y", f"--language_temperature={written}", "--min_side=inf"]
    options, _ = prepare.make_parser().parse_known_args(flags)
    rules = prepare.make_rules(options)
    assert (rules.language_temperature, rules.min_side) == (temperature, None)


def test_a_second_job_in_an_output_is_refused_and_harms_nothing(done, run, tmp_path):
    with storage.own_folder(str(tmp_path / "out")):
        status, _, error = run("out", f"--input={done.raw}")
        assert status == 1 and "another prepare writes into it" in error
        assert list((tmp_path / "out").iterdir()) == []


def test_a_job_whose_output_another_has_taken_says_so(done, run, tmp_path, monkeypatch):
    inner = job.steps.list_classes

    def take(plan):
        """Does what a job on another machine may do meanwhile."""
        storage.write_json(f"{plan.output}/begun.json", {"another": "job"})
        return inner(plan)

    monkeypatch.setattr(job.steps, "list_classes", take)
    status, _, error = run("out", f"--input={done.raw}")
    assert status == 1 and "another job has worked in this output" in error
    assert not list((tmp_path / "out").glob("pairs-*"))


@pytest.mark.parametrize("level", [logging.NOTSET, logging.INFO, logging.CRITICAL])
def test_what_the_caller_has_silenced_stays_so(level):
    pytest.importorskip("apache_beam", reason="Apache Beam is not installed (.[prepare])")
    logging.disable(level)
    try:
        job.import_pipelines()
        assert logging.root.manager.disable == level
    finally:
        logging.disable(logging.NOTSET)


def test_a_user_error_of_a_worker_is_a_line_without_a_traceback(caplog):
    beam = pytest.importorskip("apache_beam", reason="Apache Beam is not installed (.[prepare])")
    pipelines = job.import_pipelines()

    def fail(error):
        raise error

    def run(error):
        with beam.Pipeline(options=pipelines.read_options([])) as pipeline:
            pipeline | beam.Create([error]) | beam.Map(fail)

    with pytest.raises(UserError, match=r"^the disk is full$"):
        job.run_pipeline(run, UserError("the disk is full"))
    assert "Traceback" not in caplog.text
    with pytest.raises(KeyError):
        job.run_pipeline(run, KeyError("a bug"))
    assert "Traceback" in caplog.text


def fail_always(pixels):
    return undefined  # noqa: F821


def tell_more(given):
    return "en", 0.9


@pytest.mark.parametrize(
    ("flag", "told"),
    [
        ("--classifier=tests.prepare.test_job:fail_always", "NameError: name"),
        ("--classifier=tests.prepare.test_job:tell_more", "--classifier returns ('en', 0.9), wh"),
        ("--languages=tests.prepare.test_job:tell_more", "--languages returns ('en', 0.9), which"),
        ("--languages=builtins:len", "is no text"),
    ],
)
def test_a_function_that_fails_on_everything_ends_the_job_before_it_begins(
    done, run, tmp_path, flag, told
):
    status, _, error = run("out", f"--input={done.raw}", flag)
    assert status == 1 and error.count("\n") == 1
    assert f"{flag} fails on all of the first examples: " in error and told in error
    assert not (tmp_path / "out" / "settings.json").exists()


@pytest.mark.skipif(sys.platform == "darwin", reason="every name is UTF-8 there")
def test_a_name_that_is_not_utf8_is_kept_as_json_has_it(run, tmp_path):
    names = [os.fsdecode(name) for name in (b"whole\xff.jpg", b"broken\xfe.jpg")]
    (tmp_path / "raw" / "cat").mkdir(parents=True)
    for name, image in zip(names, (draw_image(0, 50, 40), b"broken"), strict=True):
        (tmp_path / "raw" / "cat" / name).write_bytes(image)
    assert run("out", f"--input={tmp_path}/raw", "--rules=none")[0] == 0
    members = read_tar(tmp_path / "out" / "pairs-00000.tar")
    (about,) = (data.decode() for name, data in members.items() if name.endswith(".json"))
    assert json.loads(about)["origin"]["key"].endswith(names[0])
    (line,) = (tmp_path / "out" / "quarantine.jsonl").read_text("utf-8").splitlines()
    assert "/broken" in json.loads(line)["name"]


@pytest.mark.skipif(sys.platform == "darwin", reason="every name is UTF-8 there")
def test_a_file_that_cannot_be_read_is_told_whatever_its_name(run, tmp_path):
    raw = write_parquet(tmp_path / "raw", [(draw_image(0), "old dog and cat")], files=1)
    (tmp_path / "raw" / os.fsdecode(b"raw-\xff.parquet")).write_bytes(b"none")
    for _ in range(2):
        status, out, _ = run("out", f"--input={raw}", "--rules=none")
        assert status == 0 and r"/raw-\udcff.parquet: " in out
    told = json.loads((tmp_path / "out" / "statistics.json").read_text("utf-8"))
    (name,) = told["unreadable_files"]
    assert name.endswith("/raw-\udcff.parquet")


def test_files_that_lack_a_column_have_null_in_its_place(run, tmp_path):
    rows = [(draw_image(n), f"old dog and cat {n}") for n in range(6)]
    raw = write_parquet(tmp_path / "raw", rows, files=2)
    second = tmp_path / "raw" / "raw-00001.parquet"
    first = tmp_path / "raw" / "raw-00000.parquet"
    for path, fields in ((first, ("a", "b")), (second, ("a",))):
        table = pq.read_table(path)
        about = pa.array([{name: name for name in fields}] * len(table))
        table = table.drop_columns(["url"] * (path == second)).append_column("about", about)
        pq.write_table(table, path)
    flags = f"--input={raw}", "--rules=none", "--keep=url,about.a,about.b,none.x"
    assert run("none", *flags)[0] == 1  # no file has it
    assert run("out", *flags[:2], "--keep=url,about.a,about.b")[0] == 0
    members = read_tar(tmp_path / "out" / "pairs-00000.tar")
    abouts = [json.loads(data) for name, data in members.items() if name.endswith(".json")]
    for name, count in (("url", 3), ("about.a", 0), ("about.b", 3)):
        assert sum(about["columns"][name] is None for about in abouts) == count


def test_shards_of_another_format_are_of_another_job(done, run, tmp_path):
    flags = f"--input={done.raw}", "--rules=none"
    assert run("out", *flags)[0] == 0
    before = read_output(tmp_path / "out")
    status, _, error = run("out", *flags, "--format=tfrecord")
    assert status == 1 and "shard_format is 'tar' there and 'tfrecord' now" in error
    assert read_output(tmp_path / "out") == before
