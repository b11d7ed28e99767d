"""A job drops what a brute force drops, and its shards are the same however it was run."""

import dataclasses
import json

import numpy as np
import pytest
from raw_pairs import BOILERPLATE, draw_image, make_rows, read_output, read_tar, write_parquet

from big_align.data.sources.tar_source import TarSource
from big_align.prepare.rules import Rules
from tests.prepare import brute_force

THREADS = "--direct_running_mode=multi_threading", "--direct_num_workers=2"


def can_be_read(row):
    image, text = row
    return bool(image) and image not in (b"not an image", draw_image(1)[:300]) and bool(text)


@pytest.fixture(scope="module")
def raw(tmp_path_factory):
    return write_parquet(tmp_path_factory.mktemp("raw"), make_rows())


def test_counts_are_those_of_a_brute_force_and_nothing_is_lost(raw, run, tmp_path):
    status, out, _ = run(raw, "out", "--max_texts=5", "--shard_size=15")
    assert status == 0 and "rare" in out
    found = json.loads((tmp_path / "out" / "statistics.json").read_text())
    rows = list(filter(can_be_read, make_rows()))
    failed, pairs, images = brute_force.count(rows, Rules(max_texts=5), min_count=2)
    told = {name: rule["fails"] for name, rule in found["rules"].items() if rule["fails"]}
    assert told == failed and min(failed.values()) >= 1 and len(failed) == 8
    assert (found["kept_pairs"], found["kept_images"]) == (pairs, images)
    dropped = sum(rule["first"] for rule in found["rules"].values())
    assert dropped + found["kept_pairs"] == found["pairs"] == len(rows)
    assert found["pairs"] + found["quarantined"] == len(make_rows())
    lines = (tmp_path / "out" / "quarantine.jsonl").read_text().splitlines()
    assert sum(json.loads(line)["count"] for line in lines) == found["quarantined"] == 4
    shards = TarSource(f"{tmp_path}/out/pairs-*.tar", caption="json.captions")
    sizes = shards.shard_sizes.tolist()
    assert sum(sizes) == images and max(sizes) - min(sizes) <= 1 and len(sizes) == -(-images // 15)
    read = [shards.read(s, n) for s, size in enumerate(sizes) for n in range(size)]
    assert sum(len(example.captions) for example in read) == pairs
    assert not any(BOILERPLATE in example.captions for example in read)
    raw_images = {image for image, _ in rows}
    assert all(example.image in raw_images for example in read)
    assert (tmp_path / "out" / "work").exists() is False


def test_keys_say_where_a_pair_comes_from(raw, run, tmp_path):
    assert run(raw, "out")[0] == 0
    members = read_tar(tmp_path / "out" / "pairs-00000.tar")
    rows, merged = make_rows(), 0
    for name, data in members.items():
        if not name.endswith(".json"):
            continue
        about, key = json.loads(data), name.removesuffix(".json")
        origin = about["origin"]
        file = int(origin["input"][-13:-8])
        size = -(-len(rows) // 3)
        there = [row for row in rows[file * size : (file + 1) * size] if row[0]]
        image, text = there[origin["row"]]
        assert key == f"raw-{file:05d}-{origin['row']:09d}"
        assert image in (members.get(f"{key}.jpg"), members.get(f"{key}.png"))
        assert " ".join(text.replace("&amp;", "&").split()) == about["captions"][0]
        assert members[f"{key}.txt"].decode() == about["captions"][0]
        merged += len(about.get("merged", []))
    assert merged == 8  # seven more texts of one image and one of another


def test_shards_do_not_depend_on_the_workers_but_on_the_seed(raw, run, tmp_path):
    assert run(raw, "one", "--shard_size=15")[0] == 0
    assert run(raw, "two", "--shard_size=15", "--wave_megabytes=1", *THREADS)[0] == 0
    assert read_output(tmp_path / "one") == read_output(tmp_path / "two")
    assert run(raw, "three", "--shard_size=15", "--seed=1")[0] == 0
    one, three = (read_tar(tmp_path / name / "pairs-00000.tar") for name in ("one", "three"))
    assert set(one) != set(three)


def test_a_finished_job_is_not_done_again_and_another_is_refused(raw, run, tmp_path):
    assert run(raw, "out", f"--work={tmp_path}/work")[0] == 0
    first = read_output(tmp_path / "out")
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("*.tar")}
    status, out, _ = run(raw, "out", f"--work={tmp_path}/work")
    assert status == 0 and "pairs kept" in out and read_output(tmp_path / "out") == first
    assert times == {path: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("*.tar")}
    status, _, error = run(raw, "out", "--min_side=100")
    assert status == 1 and "begun with other settings (min_side was 200 and is 100)" in error
    facts = {path: path.stat().st_mtime_ns for path in tmp_path.glob("work/facts-*/facts/*")}
    assert run(raw, "other", f"--work={tmp_path}/work", "--min_side=100")[0] == 0
    assert facts == {path: path.stat().st_mtime_ns for path in tmp_path.glob("work/facts-*/facts/*")}


def test_listed_keys_are_dropped_with_their_reasons(raw, run, tmp_path):
    assert run(raw, "all")[0] == 0
    keys = sorted({name.partition(".")[0] for name in read_tar(tmp_path / "all/pairs-00000.tar")})
    lines = [{"key": keys[0], "reason": "test"}, {"key": keys[5]}, {"key": "none-000000001"}]
    (tmp_path / "drop.jsonl").write_text("\n".join(map(json.dumps, lines)))
    assert run(raw, "less", f"--drop={tmp_path}/drop.jsonl")[0] == 0
    left = {name.partition(".")[0] for name in read_tar(tmp_path / "less/pairs-00000.tar")}
    assert set(keys) - left == {keys[0], keys[5]} and left < set(keys)
    found = json.loads((tmp_path / "less" / "statistics.json").read_text())
    assert found["listed_by_reason"]["test"] >= 1 and found["listed_by_reason"]["listed"] >= 1


def is_dark(pixels: np.ndarray) -> str | None:
    return "dark" if pixels.mean() < 30 else None


def name_language(text: str) -> str:
    return "en" if text.isascii() else "other"


def test_a_classifier_and_languages_are_functions_of_the_user(raw, run, tmp_path):
    module = "tests.prepare.test_job"
    flags = f"--classifier={module}:is_dark", f"--languages={module}:name_language"
    assert run(raw, "out", *flags)[0] == 0
    found = json.loads((tmp_path / "out" / "statistics.json").read_text())
    rows = list(filter(can_be_read, make_rows()))
    from big_align.prepare.examination import identify_image

    dark = sum(identify_image(image)[1].mean() < 30 for image, _ in rows)
    assert found["rules"]["unsafe"]["fails"] == dark > 0
    kept = found["kept_pairs"]
    assert found["languages"] == {"en": {"pairs": len(rows), "kept": kept}}
    members = read_tar(tmp_path / "out" / "pairs-00000.tar")
    about = json.loads(next(data for name, data in members.items() if name.endswith(".json")))
    assert about["languages"] == ["en"] * len(about["captions"])


def test_a_dry_run_writes_the_report_alone(raw, run, tmp_path):
    status, out, _ = run(raw, "out", "--dry_run", "--sample=30")
    assert status == 0 and "report.html" in out
    found = json.loads((tmp_path / "out" / "statistics.json").read_text())
    assert found["sampled"] and 20 <= found["pairs"] <= 40
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {"report.html", "statistics.json", "quarantine.jsonl"}
    page = (tmp_path / "out" / "report.html").read_text()
    assert "Dry run" in page and "see the sample alone" in page
    assert run(raw, "out")[0] == 0  # a dry run is no other job


def test_what_data_say_is_text_and_never_markup(run, tmp_path):
    rows = [(draw_image(n), f"<script>{n}</script> & <b>{'x' * 300} dog") for n in range(4)]
    raw = write_parquet(tmp_path / "<b>raw", rows, files=1)
    assert run(raw, "out", "--rules=none")[0] == 0
    page = (tmp_path / "out" / "report.html").read_text()
    assert "<script>" not in page and "&lt;script&gt;" in page and "<b>raw" not in page
    kept = TarSource(f"{tmp_path}/out/pairs-*.tar")
    assert {kept.read(0, n).captions[0] for n in range(4)} == {text for _, text in rows}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--rules=algin"], "--rules=algin is not align or none (did you mean 'align'?)"),
        (["--min_sid=100"], "unknown flag --min_sid (did you mean '--min_side'?)"),
        (["--input_argument=caption=alt"], "has no column 'alt'; it has 'jpg', 'caption'"),
        (["--drop=none.jsonl"], "--drop=none.jsonl: there is no such file"),
        (["--classifier=tests:none"], "--classifier=tests:none cannot be imported"),
        (["--languages=words"], "--languages=words does not read as module:function"),
        (["--shard_size=0"], "--shard_size=0 must be at least 1"),
        (["--min_unigrams=21"], "min_unigrams is 21 and max_unigrams 20"),
        (["--input_name=parket"], "did you mean 'parquet'?"),
    ],
)
def test_a_mistake_is_one_line(raw, run, flags, message):
    status, _, error = run(raw, "out", *flags)
    assert status == 1 and message in error
    assert error.startswith("error: ") and error.strip().count("\n") == 0


def test_numbers_of_the_command_line_stand_above_the_preset():
    from big_align.tools import prepare

    options, rest = prepare.parse_arguments(
        ["--input=x", "--output=y", "--rules=none", "--min_side=64", "--tokens=1_000", "--runner=R"]
    )
    rules = prepare.make_rules(options)
    assert (rules.min_side, rules.tokens, rules.scale_tokens) == (64, 1000, False)
    assert rules.max_texts is None and rest == ["--runner=R"]
    options, _ = prepare.parse_arguments(["--input=x", "--output=y", "--max_aspect=none"])
    assert prepare.make_rules(options) == dataclasses.replace(Rules(), max_aspect=None)
