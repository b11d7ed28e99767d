"""Real alt-texts and photographs: counts of a brute force, and a kill that changes nothing."""

import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import time

import brute_force
import numpy as np
import pytest
from PIL import Image
from raw_pairs import encode, read_output, write_parquet

from big_align.data.sources.tar_source import TarSource
from big_align.prepare.rules import Rules
from tests.run_main import ROOT

PHOTOGRAPHS = 300
RULES = "--min_side=100", "--max_texts=100", "--shard_size=500"
BROKEN = 40


def read_photographs(path, count):
    """Returns the first images of a tar file, in its order."""
    with tarfile.open(path) as tar:
        members = [member for member in tar if member.name.endswith(".jpg")][:count]
        return [tar.extractfile(member).read() for member in members]


def make_real_rows(data_dir):
    """Returns all alt-texts, each with a photograph, and with what rules look for planted.

    Each of the photographs has about fifty alt-texts, one of them 150; boilerplate, tiny, long and
    broken images, and repeated pairs are among them.
    """
    texts = (data_dir / "text" / "alt_texts.txt").read_text().splitlines()
    photographs = read_photographs(data_dir / "flickr8k" / "dev-00000.tar", PHOTOGRAPHS)
    draw = np.random.default_rng(0)
    numbers = draw.integers(0, PHOTOGRAPHS, len(texts))
    numbers[draw.choice(len(texts), 150, replace=False)] = 7
    rows = [(photographs[n], text) for n, text in zip(numbers, texts, strict=True)]
    for n in range(60):
        rows.append((photographs[n], "Photo &copy; all rights reserved"))
        rows.append(rows[31 * n])
    for n in range(30):
        pixels = np.asarray(Image.open(io.BytesIO(photographs[n])))
        rows.append((encode(pixels[:90]), texts[n]))
        rows.append((encode(np.tile(pixels, (1, 4, 1)), "JPEG"), texts[n]))
        rows.append((encode(pixels), f"{texts[n + 50]} "))  # the same pixels in another file
    broken = [(photographs[n][: 200 + n], texts[n]) for n in range(BROKEN)]
    order = draw.permutation(len(rows) + BROKEN)
    everything = rows + broken
    return [everything[n] for n in order], [everything[n] for n in order if n < len(rows)]


@pytest.fixture(scope="module")
def real(data_dir, tmp_path_factory):
    pytest.importorskip("apache_beam", reason="Apache Beam is not installed (.[prepare])")
    rows, whole = make_real_rows(data_dir)
    folder = tmp_path_factory.mktemp("real")
    return write_parquet(folder / "raw", rows, files=8, group=100), whole


def start(raw, output, *flags):
    command = [sys.executable, "-m", "big_align.tools.prepare", f"--input={raw}", *RULES, *flags]
    return subprocess.Popen(
        [*command, f"--output={output}"], cwd=ROOT, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def wait(process):
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output[-3000:]


@pytest.mark.slow
def test_counts_on_real_pairs_and_a_kill_changes_nothing(real, tmp_path):
    raw, rows = real
    workers = "--direct_running_mode=multi_processing", "--direct_num_workers=2"
    whole = start(raw, tmp_path / "whole", *workers)
    wait(whole)
    check_counts(tmp_path / "whole", rows)
    check_kills(raw, tmp_path)


def check_counts(output, rows):
    found = json.loads((output / "statistics.json").read_text())
    rules = Rules(min_side=100, max_texts=100)
    failed, pairs, images = brute_force.count(rows, rules, min_count=2)
    assert {name: rule["fails"] for name, rule in found["rules"].items()} == failed
    assert min(failed.values()) >= 30 and len(failed) == 8
    assert (found["kept_pairs"], found["kept_images"]) == (pairs, images)
    assert (found["pairs"], found["quarantined"]) == (len(rows), BROKEN)
    kinds = found["quarantined_by_kind"]
    assert sum(kinds.values()) == BROKEN
    shards = TarSource(f"{output}/pairs-*.tar", "json.captions")
    assert shards.shard_sizes.sum() == images and not shards.broken.any()


def check_kills(raw, folder):
    """Kills a job of one process wherever it is: it ends with the same files as the other."""
    marks = ["work/facts-*/facts/*-0*", "work/decisions-*", "pairs-*.tar"]
    for mark in marks:
        process = start(raw, folder / "killed", "--wave_megabytes=1")
        until = time.monotonic() + 120
        while not list((folder / "killed").glob(mark)) and process.poll() is None:
            assert time.monotonic() < until
            time.sleep(0.02)
        assert process.poll() is None, "it ended before it was killed"
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    wait(start(raw, folder / "killed", "--wave_megabytes=1"))
    assert read_output(folder / "killed") == read_output(folder / "whole")
    assert not list((folder / "killed").glob(".*")) and not (folder / "killed" / "work").exists()
