"""Two processes share the images, and write the file that one writes."""

import subprocess
import sys

import pytest

from tests.run_main import ROOT, environment, find_port
from tests.suites.measuring import small

pytestmark = pytest.mark.slow


def test_two_processes_write_what_one_does(tmp_path):
    model = small.save_model(tmp_path / "dual")
    small.write_cifar(tmp_path, train=5000, test=40)
    small.write_flickr(tmp_path)
    given = dict(benchmarks="food101,cifar10,flickr8k", tasks="zero_shot,knn,retrieval")
    assert small.run(model, tmp_path, tmp_path / "one.csv", **given) == 0
    options = dict(model=model, data=tmp_path, output=tmp_path / "two.csv", batch_size=16) | given
    flags = [f"--{name}={value}" for name, value in options.items()]
    command = [sys.executable, "-m", "big_align.tools.benchmark", "--distributed", *flags]
    variables = environment(2) | {"PORT": str(find_port())}
    done = subprocess.run(
        ["launch/local.sh", "2", "--", *command],
        cwd=ROOT, env=variables, capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("food101: the split test is not in") == 1
    one, two = (small.read_rows(tmp_path / f"{name}.csv") for name in ("one", "two"))
    assert list(one) == list(two)
    for key, row in one.items():
        assert two[key]["metrics"] == pytest.approx(row["metrics"], abs=1e-6)
        assert two[key]["fingerprint"] == row["fingerprint"]
