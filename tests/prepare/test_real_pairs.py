"""Real alt-texts and photographs: counts are those of a brute force."""

import io
import json
import subprocess
import sys
import tarfile

import brute_force
import numpy as np
import pytest
from PIL import Image
from raw_pairs import encode, write_parquet

from big_align.data.sources.tar_source import TarSource
from big_align.prepare.rules import Rules
from tests.run_main import ROOT

PHOTOGRAPHS = 300
RULES = "--min_side=100", "--max_texts=100", "--shard_size=50"
BROKEN = 40


def read_photographs(path, count):
    """Returns the first images of a tar file, in its order."""
    with tarfile.open(path) as tar:
        members = [member for member in tar if member.name.endswith(".jpg")][:count]
        return [tar.extractfile(member).read() for member in members]


def make_real_rows(data_dir):
    """Returns all alt-texts, each with a photograph, and with what rules look for planted.

    Each of the photographs has about fifty alt-texts, one of them 200; boilerplate, tiny, long and
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
        rows.append((photographs[n], f"{texts[n].split()[0]} {n % 3}"))
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


@pytest.mark.slow
def test_counts_on_real_pairs_are_those_of_a_brute_force(real, tmp_path):
    raw, rows = real
    command = [sys.executable, "-m", "big_align.tools.prepare", f"--input={raw}", *RULES]
    subprocess.run([*command, f"--output={tmp_path}/out"], cwd=ROOT, check=True)
    output = tmp_path / "out"
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
