"""Plans of jobs over embeddings: what their programs add up to, and what is asked in vain."""

import dataclasses
import json

import pytest

from big_align.core.errors import UserError
from big_align.planning.jobs.requests import JobRequest
from big_align.planning.jobs.tracing import plan_job
from big_align.planning.machines import one_host
from big_align.tools import plan

CLUSTER = JobRequest("cluster", "v5e:2x2", 10**7, dim=256, centers=131_072, iterations=3)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "give --config, or --job"),
        (["--job=cluster"], "--job=cluster needs --rows, the number of images"),
        (["--job=cluster", "--rows=1e6"], "--job=cluster needs --dim and --centers"),
        (["--job=embed", "--rows=1e6"], "--job=embed needs --config"),
        (["--job=cluster", "--rows=0.5"], "0.5 is no number of images"),
        (["--job=cluster", "--rows=10", "--dim=8", "--centers=11"], "--centers=11 are more than"),
        (["--job=cluster", "--rows=10", "--dim=0", "--centers=2"], "dim"),
    ],
)
def test_what_is_missing_is_named(flags, message, capsys, monkeypatch):
    monkeypatch.setattr("big_align.planning.jobs.requests.check_machine", lambda *_: None)
    try:
        status = plan.main(["--topology=v5e:2x2", *flags])
    except SystemExit as error:  # of argparse
        status = error.code
    assert status in (1, 2) and message in capsys.readouterr().err


def test_gpus_need_their_compiler(monkeypatch):
    monkeypatch.setattr("big_align.planning.jobs.requests.has_compiler", lambda: False)
    with pytest.raises(UserError, match=r"pip install '\.\[cuda\]', which needs no GPU"):
        dataclasses.replace(CLUSTER, topology="h100:8x8").check()


def test_one_host_of_each_kind_of_machine():
    names = {"v5e:16x16": "v5e:2x2", "v5e:2x4": "v5e:2x4", "v5p:8x8x8": "v5p:2x2x1"}
    names |= {"v3:16x32": "v3:2x2", "h100:8x8": "h100:1x8"}
    assert {name: one_host(name) for name in names} == names


def check_sums(report):
    """Whatever is asked, the numbers of the programs add up."""
    programs = report["programs"]
    seconds = sum(each["seconds"] * each["times"] for each in programs)
    assert report["run"]["hours"] == pytest.approx(seconds / 3600)
    for each in programs:
        assert each["seconds"] == max(each["parts"].values()) == each["parts"][each["binds"]]
        assert each["unknown_loops"] == 0
    assert report["pass"]["seconds"] == pytest.approx(
        sum(each["seconds"] * each["pass"] for each in programs)
    )


@pytest.mark.libtpu
def test_a_pass_of_k_means_is_bound_by_its_products():
    report = plan_job(CLUSTER, price=2.0)
    check_sums(report)
    start, assign, move, label = report["programs"]
    products = 2 * CLUSTER.rows * CLUSTER.centers * CLUSTER.dim
    for each in (assign, label):
        # Chunks are whole, and rows are compared again with 8 candidates each.
        executed = each["executed_per_device"] * 4 * each["pass" if each is assign else "times"]
        assert products <= executed <= 1.05 * products
        assert each["binds"] == "compute"
    assert assign["times"] == 3 * assign["pass"] and move["times"] == 3
    assert start["executed_per_device"] * 4 * start["times"] >= 2 * 4 * 131_072 * 131_072 * 256
    assert report["pass"]["binds"] == "compute" and report["fits"]
    assert report["pass"]["useful_seconds"] == pytest.approx(products / 4 / 197e12)
    assert report["pass"]["seconds"] < 1.1 * report["pass"]["useful_seconds"]
    assert report["run"]["cost"] == pytest.approx(2 * report["run"]["chip_hours"])
    assert report["disk"]["embeddings"] == CLUSTER.rows * (2 * 256 + 12)
    assert report["read"]["a pass over all"] == CLUSTER.rows * 256 * 2  # one host


@pytest.mark.libtpu
@pytest.mark.slow
def test_a_sample_and_float32_cost_what_they_should():
    exact, sampled = (
        plan_job(dataclasses.replace(CLUSTER, **more))
        for more in ({"candidates": None}, {"sample": 10**6})
    )
    check_sums(exact)
    check_sums(sampled)
    assign = exact["programs"][1]
    # Six products of bfloat16 for one of float32.
    assert assign["parts"]["compute"] == pytest.approx(
        6 * assign["executed_per_device"] / 197e12, rel=0.01
    )
    _, assign, move, _ = sampled["programs"]
    parts = -(-(10**6) // sampled["facts"]["rows of a chunk"])
    assert assign["times"] == 3 * parts + assign["pass"] and move["times"] == 4


@pytest.mark.libtpu
@pytest.mark.slow
def test_centers_beyond_the_memory_of_all_devices_do_not_fit(capsys):
    flags = ["--job=cluster", "--topology=v5e:1x1", "--rows=1e9", "--dim=1024", "--centers=2e6"]
    assert plan.main([*flags, "--json=-"]) in (1, 3)


@pytest.mark.libtpu
@pytest.mark.slow
def test_a_host_embeds_and_compares(tmp_path, capsys):
    numbers = tmp_path / "plan.json"
    flags = ["--topology=v5e:4x4", "--rows=1e6", f"--json={numbers}"]
    assert plan.main(["--job=embed", "--config=configs/quickstart.py", *flags]) == 0
    assert "each host has to load" in capsys.readouterr().out
    report = json.loads(numbers.read_text())
    check_sums(report)
    (embed,) = report["programs"]
    assert report["mesh"] == {"data": 4, "fsdp": 1} and report["hosts"] == 4
    assert embed["times"] == -(-(10**6) // (4 * 1024))
    assert 0.9 * embed["useful"] <= 4 * embed["executed_per_device"] <= 1.1 * embed["useful"]
    assert plan.main(["--job=duplicates", "--dim=64", "--centers=1e5", *flags]) == 0
    report = json.loads(numbers.read_text())
    check_sums(report)
    assert report["facts"]["buckets"] == 1000
    inside = 2 * 1e6 * 10 * 100 * 64
    assert report["facts"]["core-hours of hosts"] == pytest.approx(inside / 75e9 / 3600)
