"""Sampling by language: its shares, and that a brute force keeps the same pairs."""

import hashlib
import json
import math
from collections import Counter

import pytest
from plain_job import write_plainly
from raw_pairs import draw_image, read_output, read_tar, write_parquet

from big_align.core.errors import UserError
from big_align.prepare.examination import Examination
from big_align.prepare.inputs import Inputs, find_inputs
from big_align.prepare.on_beam import job
from big_align.prepare.plan import JobPlan
from big_align.prepare.rules import Pair, Rules
from big_align.prepare.sampling import choose_rates, draw_pairs

NAMES = {"a": "en", "b": "de", "c": "cs"}
FUNCTION = "tests.prepare.test_sampling:name_language"


def name_language(text):
    return NAMES.get(text[0], "")


def make_rows():
    """Returns 60 English, 20 German and 5 Czech pairs, and 3 of no language."""
    letters = "a" * 60 + "b" * 20 + "c" * 5 + "x" * 3
    return [(draw_image(n), f"{letter} dog and text{n // 2}") for n, letter in enumerate(letters)]


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0, 5.0, math.inf])
def test_what_is_kept_has_the_shares_of_the_temperature(temperature):
    counts = {"en": 900_000, "de": 40_000, "cs": 2_000, "xx": 3, "": 17}
    rates = choose_rates(counts, temperature, 1000)
    kept = {name: rates[name] * counts[name] for name in ("en", "de", "cs")}
    for name in kept:
        wanted = (counts[name] / counts["cs"]) ** (1 / temperature)
        assert kept[name] / kept["cs"] == pytest.approx(wanted)
    assert max(rates[name] for name in kept) == 1.0 and 0 < min(rates.values())
    assert rates["xx"] == rates[""] == 1.0
    if temperature == 1:
        assert set(rates.values()) == {1.0}


def test_a_pair_is_drawn_by_its_key_alone_and_less_is_part_of_more():
    pairs = [Pair(0, row, 0, f"text {row}", 9, 9, 9, language="en") for row in range(1_000)]

    def draw(rate, seed):
        is_drawn = draw_pairs({"en": rate}, seed, "{}-{}".format)
        return {pair.row for pair in pairs if is_drawn(pair)}

    drawn = {rate: draw(rate, 3) for rate in (0.1, 0.3, 1.0)}
    assert drawn[0.1] < drawn[0.3] < drawn[1.0] == set(range(1_000))
    for rate, rows in drawn.items():  # five standard deviations
        assert abs(len(rows) - 1_000 * rate) <= 5 * math.sqrt(1_000 * rate * (1 - rate))
    other = draw(0.1, 4)
    assert len(other & drawn[0.1]) < 0.4 * len(other)


def test_mistakes_name_the_flag():
    with pytest.raises(UserError, match="no pair has one: give --languages="):
        choose_rates({"": 10}, 2.0, 1000)
    with pytest.raises(UserError, match="language_temperature is 0"):
        Rules(language_temperature=0)
    assert choose_rates({}, 2.0, 1000) == {}


def draw_by_force(rows, temperature, floor, files):
    """Returns the texts that are kept, and counts by language, in plain Python."""
    often = Counter(word for _, text in rows for word in text.split())
    left = [n for n, (_, text) in enumerate(rows) if min(often[w] for w in text.split()) > 1]
    counts = Counter(name_language(rows[n][1]) for n in left)
    powers = {k: c ** (1 / temperature - 1) for k, c in counts.items() if k and c > floor}
    size, kept = -(-len(rows) // files), []
    for n in left:
        language = name_language(rows[n][1])
        key = f"0 language raw-{n // size:05d}-{n % size:09d}"
        digest = hashlib.blake2b(key.encode(), digest_size=8).digest()
        rate = powers.get(language, max(powers.values())) / max(powers.values())
        if int.from_bytes(digest, "big") / 2**64 < rate:
            kept.append(rows[n][1])
    return kept, counts


@pytest.mark.slow
def test_a_job_keeps_what_a_brute_force_keeps_with_any_number_of_workers(run, tmp_path):
    rows = make_rows()
    raw = write_parquet(tmp_path / "raw", rows)
    flags = f"--input={raw}", f"--languages={FUNCTION}", "--shard_size=7"
    flags = *flags, "--language_temperature=2", "--language_floor=5"
    assert run("one", *flags)[0] == 0
    workers = "--direct_running_mode=multi_threading", "--direct_num_workers=2"
    assert run("two", *flags, *workers)[0] == 0
    assert read_output(tmp_path / "one") == read_output(tmp_path / "two")
    kept, counts = draw_by_force(rows, 2, 5, 3)
    texts = []
    for path in (tmp_path / "one").glob("*.tar"):
        texts += [data.decode() for name, data in read_tar(path).items() if name.endswith("txt")]
    assert sorted(texts) == sorted(kept) and len(kept) < 80
    found = json.loads((tmp_path / "one" / "statistics.json").read_text())
    told = Counter(map(name_language, kept))
    for name in NAMES.values():
        each = found["languages"][name]
        assert each["kept"] == told[name] and each["sampled_out"] == counts[name] - told[name]
        assert each["pairs"] == each["kept"] + each["dropped"] and told[name] > 0
    assert found["languages"]["de"]["rate"] == 1 == found["languages"]["cs"]["rate"]
    assert found["languages"]["en"]["rate"] == pytest.approx((counts["en"] / counts["de"]) ** -0.5)
    assert found["rules"]["abundant"]["first"] == counts["en"] - told["en"] > 0
    page = (tmp_path / "one" / "report.html").read_text()
    assert "of these by sampling" in page and "abundant" in page
    rules = Rules(language_temperature=2, language_floor=5)
    plan = JobPlan(
        find_inputs(raw), f"{tmp_path}/plain", f"{tmp_path}/work", Examination(languages=FUNCTION),
        rules, shard_size=7,
    )  # fmt: skip
    write_plainly(plan)
    shards = {k: data for k, data in read_output(tmp_path / "one").items() if k.endswith(".tar")}
    assert read_output(tmp_path / "plain") == shards


def test_what_a_worker_says_to_the_user_is_told_without_the_name_of_its_step():
    def fail(plan, told):
        raise UserError(f"{told} [while running 'Rates-ptransform-7']")

    with pytest.raises(UserError, match=r"^no pair has one$"):
        job.run_pipeline(fail, JobPlan(Inputs("csv", (), (), (), ()), "", ""), "no pair has one")
