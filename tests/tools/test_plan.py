"""The tool from the command line to the table: a small step for a TPU, and for GPUs."""

import json

import pytest

from big_align.config.overrides import load_config
from big_align.planning import compilation, gpu_topologies, machines, topologies
from big_align.planning.reports import report as report_
from big_align.planning.reports import stages
from big_align.tools import plan

CONFIG = "--config=tests/tiny_config.py"
needs_libtpu = pytest.mark.libtpu


@pytest.mark.slow
@needs_libtpu
def test_a_step_is_planned_for_a_tpu(tmp_path, capsys):
    path = tmp_path / "plan.json"
    arguments = [CONFIG, "--topology=v5e:2x2", "--price=1.2", "--images_per_core=100"]
    assert plan.main([*arguments, f"--json={path}", "--config.mesh.fsdp=1"]) == 0
    text, report = capsys.readouterr().out, json.loads(path.read_text())
    assert "v5e:2x2: 4 chips, 4 devices, 1 hosts" in text
    assert "fits                     yes" in text
    assert report["mesh"] == {"data": 4, "fsdp": 1}
    assert report["memory"]["capacity"] == 16 * 2**30
    # The state goes in: parameters and two moments of float32, padded to tiles.
    assert report["memory"]["arguments"] >= 3 * 4 * report["parameters"]
    flops = report["flops"]
    # A convolution's padding is useful by the papers' count, and not executed.
    assert 0.7 < 4 * flops["executed_per_device"] / flops["useful"] <= 1
    # Attention of 16 texts of 12 tokens: the kernel computes the logits again in the backward pass,
    # and multiplies both heads of 8 channels by all 16 lanes.
    product = 2 * 16 * 12 * 12 * 16
    assert flops["recomputed"] == (7 * 2 - 6) * product
    assert flops["replicated"] == 0
    summed = sum(each["bytes"] for each in report["collectives"] if each["kind"] == "all-reduce")
    assert summed >= 4 * report["parameters"]
    assert {each["places"] for each in report["collectives"]} == {1}
    hours = report["run"]["chip_hours"]
    assert hours == pytest.approx(8 * report["time"]["bound"] * 4 / 3600)
    assert report["run"]["cost"] == pytest.approx(1.2 * hours)


@pytest.mark.slow
def test_gpus_are_planned_and_it_is_said_by_which_compiler(capsys):
    arguments = [CONFIG, "--topology=h100:2x2", "--images_per_core=100", "--json=-"]
    assert plan.main([*arguments, "--config.microbatches=2", "--config.mesh.fsdp=2"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["mesh"] == {"data": 2, "fsdp": 2} and report["hosts"] == 2
    said = report_.UNTRIED if gpu_topologies.has_compiler() else report_.STANDS_IN
    assert said in report["notes"]
    # Encoding happens twice with micro-batches: once more forward.
    assert 0.2 < report["flops"]["recomputed"] / report["flops"]["useful"] < 0.5
    # Parameters are split inside of a node, and gradients summed between nodes.
    over = {(each["devices"], each["places"]) for each in report["collectives"]}
    assert (2, 1) in over and {(2, 2), (4, 2)} & over


@pytest.mark.parametrize(
    "arguments,message",
    [
        (["--topology=v9:4x4"], "topology 'v9:4x4' is not known; there are v2:16x16"),
        (["--topology=v5e:3x3"], "topology 'v5e:3x3' is not known; v5e has 1x1, 2x2"),
        (["--topology=h100:8"], "topology 'h100:8': write h100:NODESxGPUS"),
        (["--topology=h100:1x8", "--slices=2"], "--slices=2 is for TPUs"),
        (["--topology=h100:1x8", "--config.nonsense=1"], "the config has no field 'nonsense'"),
    ],
)
def test_a_mistake_is_one_line(arguments, message, capsys):
    assert plan.main([CONFIG, "--images_per_core=1", *arguments]) in (1, 2)
    error = capsys.readouterr().err
    assert error.startswith("error: ") and message in error and error.count("\n") == 1


@pytest.mark.slow
def test_a_batch_that_does_not_divide_names_those_that_do(capsys):
    arguments = [CONFIG, "--images_per_core=1", "--topology=h100:1x6"]
    assert plan.main(arguments) == 1
    error = capsys.readouterr().err
    assert "config.batch_size = 16 is not a multiple of 6 devices; 12 and 18 are" in error


def test_without_libtpu_the_extra_is_named(capsys, monkeypatch):
    monkeypatch.setattr(topologies.importlib.util, "find_spec", lambda name: None)
    assert plan.main([CONFIG, "--images_per_core=1", "--topology=v5e:2x2"]) == 1
    assert "needs libtpu: pip install '.[plan]'" in capsys.readouterr().err


def test_an_unknown_argument_is_told(capsys):
    assert plan.main([CONFIG, "--topology=v5e:2x2", "--batch=3"]) == 1
    assert "unexpected arguments ['--batch=3']" in capsys.readouterr().err


def test_prices_are_one_or_one_a_chip():
    parse = lambda text: plan.parse_arguments([CONFIG, "--topology=a", f"--price={text}"])[0].price  # noqa: E731
    assert parse("1.5") == {"": 1.5}
    assert parse("v5e=1.2,h100=3") == {"v5e": 1.2, "h100": 3.0}


@pytest.fixture
def memory_of_choices(monkeypatch):
    """Programs that need no compiler: a device holds 40 GiB over fsdp, a quarter of it by remat."""
    text = """
ENTRY %m (a: bf16[1000,1000]) -> bf16[1000,1000] {
  %a = bf16[1000,1000] parameter(0)
  ROOT %c = bf16[1000,1000] dot(%a, %a), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}"""

    def compile_step(request):
        config = load_config(request.config, *request.overrides)
        prefix = f"--config.{request.place}.".replace("..", ".")
        given = dict(flag.removeprefix(prefix).split("=") for flag in request.overrides)
        config = stages.find_stages(config)[request.place]
        devices = machines.count_devices(request.topology, request.slices)
        peak = 40 * 2**30 // int(given.get("mesh.fsdp", 1))
        peak //= 1 if given.get("model.text.remat", "none") == "none" else 4
        memory = dict.fromkeys(("arguments", "outputs", "temporaries"), 0) | {"peak": peak}
        numbers = {"devices": devices, "chips": devices, "hosts": 1, "parameters": 1}
        numbers |= {name: config[name] for name in ("batch_size", "total_steps")}
        numbers |= {"useful_flops": 1e9, "traced_flops": 1e9}
        numbers |= {"images_per_example": 1, "seconds": 1.0}
        traced = numbers | {
            "auto": False,
            "assumed": [],
            "stands_in": False,
            "mesh": {},
            "places": [0] * devices,
        }
        return compilation.CompiledStep(traced, text, memory, None, {"all": 1.0})

    monkeypatch.setattr(compilation, "compile_step", compile_step)


def test_a_search_lists_its_trials_and_the_cheapest(memory_of_choices, capsys, tmp_path):
    path = tmp_path / "plans.json"
    flags = ["--topology=v5e:2x2", "--images_per_core=1", "--search", "--fsdp=1,2"]
    config = "--config=configs/quickstart.py"
    assert plan.main([config, *flags, "--microbatches=1", f"--json={path}"]) == 0
    reports = json.loads(path.read_text())
    short = [" ".join(report["overrides"][1:]).replace("--config.", "") for report in reports]
    towers = "model.{0}.dtype=float32 model.{0}.remat={1}"
    both = lambda remat: " ".join(towers.format(name, remat) for name in ("image", "text"))  # noqa: E731
    assert short[:4] == [
        f"mesh.fsdp=1 {both('none')}",  # 40 GiB
        f"mesh.fsdp=2 {both('none')}",  # 20 GiB
        f"mesh.fsdp=1 {both('auto')}",  # 10 GiB
        f"mesh.fsdp=2 {both('auto')}",  # 5 GiB: there may be room to recompute less
    ]
    assert [report["fits"] for report in reports[:4]] == [False, False, True, True]
    shown = capsys.readouterr().out
    assert all(name in shown for name in short) and "yes: 10.00 of 16.0 GiB" in shown


def test_a_search_sets_the_shape_of_a_config_that_has_one(memory_of_choices, tmp_path):
    path = tmp_path / "plans.json"
    flags = ["--topology=v5e:2x2", "--images_per_core=1", "--search", "--fsdp=1,2"]
    flags += ["--config.mesh.shape=(2,2)", "--microbatches=1", f"--json={path}"]
    assert plan.main(["--config=configs/quickstart.py", *flags]) == 0
    tried = [report["overrides"] for report in json.loads(path.read_text())]
    for overrides in tried:
        fsdp = 1 if "--config.mesh.fsdp=1" in overrides else 2
        assert overrides[-1] == f"--config.mesh.shape=({4 // fsdp},{fsdp})"
        mesh = load_config("configs/quickstart.py", *overrides).mesh
        assert tuple(mesh.shape) == (4 // fsdp, fsdp) and mesh.fsdp == fsdp
    assert len(tried) > 2


def test_machines_are_compared_by_cost(memory_of_choices, capsys):
    flags = ["--topology=a100:1x8", "--chips=h100,v5e:2x4,b200:1x8", "--price=a100=2,h100=3"]
    assert plan.main([CONFIG, *flags, "--images_per_core=1"]) == 0
    table = capsys.readouterr().out.split("\n\n")[-1].splitlines()
    cells = {line.split()[0]: line.split()[1:] for line in table if ":" in line.split()[0]}
    assert list(cells)[:4] == ["a100:1x8", "h100:1x8", "v5e:2x4", "b200:1x8"]
    # 40 GiB a device do not fit into the 16 of a v5e.
    assert [cells[name][0] for name in list(cells)[:4]] == ["yes", "yes", "no", "yes"]
    assert cells["a100:1x8"][-1].startswith("$") and cells["b200:1x8"][-1] == "-"


def test_what_moves_the_bytes_is_listed(memory_of_choices, capsys, tmp_path):
    path = tmp_path / "plan.json"
    flags = ["--topology=a100:1x8", "--images_per_core=1", "--top=3", f"--json={path}"]
    assert plan.main([CONFIG, *flags]) == 0
    report = json.loads(path.read_text())
    (product,) = report["top"]["kernels"]
    assert report["kernels"] == product["times"] == 1
    assert report["bytes"]["per_device"] == product["bytes"] == report["top"]["bytes"] == 6_000_000
    shown = capsys.readouterr().out
    assert "6.00 M read and written, by 1 kernels" in shown and "dot, bf16[1000,1000]" in shown


def test_a_plan_that_fits_nowhere_has_its_own_exit_status(memory_of_choices, capsys):
    assert plan.main([CONFIG, "--topology=v5e:2x2", "--images_per_core=1"]) == 3
    assert "no: 40.00 of 16.0 GiB a device" in capsys.readouterr().out


@pytest.fixture
def three_stages(tmp_path):
    """A config whose first run has one of its own: 2, 3 and 8 steps."""
    path = tmp_path / "three.py"
    path.write_text("""
from tests import tiny_config

def get_config():
    config, before, earliest = (tiny_config.get_config() for _ in range(3))
    earliest.total_steps, before.total_steps, earliest.batch_size = 2, 3, 32
    before.first = earliest
    config.first = before
    return config
""")
    return f"--config={path}"


def test_the_stages_of_a_run_are_planned_in_order_and_added_up(
    memory_of_choices, three_stages, capsys, tmp_path
):
    flags = ["--topology=a100:1x8", "--images_per_core=1", "--price=2", f"--json={tmp_path}/p.json"]
    assert plan.main([three_stages, *flags]) == 0
    report = json.loads((tmp_path / "p.json").read_text())
    numbers = [(each["total_steps"], each["batch_size"]) for each in report["stages"]]
    assert numbers == [(2, 32), (3, 16), (8, 16)] and report["total_steps"] == 13
    for name in ("hours", "chip_hours", "cost"):
        assert report["run"][name] == pytest.approx(sum(s["run"][name] for s in report["stages"]))
    shown = capsys.readouterr().out
    assert "  1: 2 steps of 32" in shown and "  3: 8 steps of 16" in shown
    assert shown.count("each host has to load") == 3
    alone = [three_stages, "--config.first={}", *flags]
    assert plan.main(alone) == 0  # without the others, its own numbers
    assert json.loads((tmp_path / "p.json").read_text()) == report["stages"][2] | {
        "overrides": ["--config.first={}"]
    }


def test_a_run_fits_if_each_of_its_stages_does(memory_of_choices, three_stages, capsys):
    flags = ["--topology=v5e:2x2", "--images_per_core=1"]  # 16 of 40 GiB
    fits = "--config{}.model.text.remat=full"
    for places, status in ((("",), 3), (("", ".first"), 3), (("", ".first", ".first.first"), 0)):
        assert plan.main([three_stages, *flags, *map(fits.format, places)]) == status


def test_a_search_finds_a_setting_for_each_stage(memory_of_choices, three_stages, capsys, tmp_path):
    flags = ["--topology=v5e:2x2", "--images_per_core=1", "--search", "--fsdp=1,4"]
    flags += ["--config.first.model.text.remat=full", "--microbatches=1"]
    assert plan.main([three_stages, *flags, f"--json={tmp_path}/p.json"]) == 0
    report = json.loads((tmp_path / "p.json").read_text())
    for depth, stage in enumerate(reversed(report["stages"])):
        prefix = f"--config.{'first.' * depth}"
        assert f"{prefix}mesh.fsdp=4" in stage["overrides"] and stage["fits"]
    assert "first.first.mesh.fsdp=1" in capsys.readouterr().out


def test_machines_are_compared_by_the_cost_of_all_stages(memory_of_choices, three_stages, capsys):
    flags = ["--topology=a100:1x8", "--chips=h100", "--price=a100=2,h100=3"]
    assert plan.main([three_stages, *flags, "--images_per_core=1"]) == 0
    table = capsys.readouterr().out.split("\n\n")[-1].splitlines()
    cells = {line.split()[0]: line.split()[1:] for line in table if ":" in line.split()[0]}
    assert list(cells)[:2] == ["a100:1x8", "h100:1x8"] and cells["a100:1x8"][-1].startswith("$")


@pytest.mark.slow
def test_each_stage_is_compiled_with_its_own_config(three_stages, capsys):
    flags = ["--topology=h100:1x2", "--images_per_core=1", "--json=-"]
    wider = "--config.first.model.image.width=16"
    assert plan.main([three_stages, wider, *flags]) == 0
    earliest, before, last = json.loads(capsys.readouterr().out)["stages"]
    assert before["parameters"] > earliest["parameters"] == last["parameters"]
    assert earliest["flops"]["useful"] > last["flops"]["useful"]  # of twice the batch
    assert plan.main([three_stages, "--config.first.first.batch_size=33", *flags]) == 1
    assert "config.first.first.batch_size = 33 is not a multiple" in capsys.readouterr().err
