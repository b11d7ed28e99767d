"""Times, costs and choices, against arithmetic by hand."""

import pytest

from big_align.config.overrides import load_config
from big_align.core.errors import UserError
from big_align.parallel.devices.chips import Chip
from big_align.planning import compilation, gpu_topologies, search
from big_align.planning.collectives import Collective
from big_align.planning.compilation import CompiledStep, Request, read_memory
from big_align.planning.machines import count_chips, count_devices, find_machine, same_size
from big_align.planning.reports.bounds import bound_step
from big_align.planning.reports.report import format_comparison, format_report, make_report

CHIP = Chip("x", (), 200.0, 160, 50.0, 20.0, 40.0, chips_per_host=4, devices_per_chip=2)
SENT = Collective("all-reduce", "f32", 8, 2, 1, 80, sent_inside=30.0, sent_between=10.0)
TRACED = {
    **{"assumed": [], "devices": 4, "chips": 4, "hosts": 1, "mesh": {"data": 4, "fsdp": 1}},
    **{"places": [0, 0, 0, 0], "parameters": 10, "batch_size": 8, "total_steps": 3600},
    **{
        "images_per_example": 1,
        "useful_flops": 4 * 197e12,
        "traced_flops": 5 * 197e12,
        "stands_in": False,
        "seconds": 1.0,
    },
}
PRODUCT = """
ENTRY %m (a: bf16[985000,1000], b: bf16[1000,200000]) -> bf16[985000,200000] {
  %a = bf16[985000,1000] parameter(0)
  %b = bf16[1000,200000] parameter(1)
  ROOT %c = bf16[985000,200000] dot(%a, %b), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}"""
MEMORY = {"arguments": 2, "outputs": 1, "temporaries": 4, "constants": 0, "peak": 7}


def report(peak=7, price=None, **changed):
    request = Request("c.py", (), "v5e:2x2")
    program = CompiledStep(TRACED | changed, PRODUCT, MEMORY | {"peak": peak}, None, {"all": 2.0})
    return make_report(request, program, price=price, images_per_core=0.5)


def test_each_part_is_over_what_one_device_has_of_the_chip():
    bound = bound_step(CHIP, flops=50.0, traffic=100.0, sent=[SENT, SENT])
    assert bound.compute == 50 / 100
    assert bound.memory == 100 / 25
    assert bound.inside == 60 / 10
    assert bound.between == 20 / (40 / 8)
    assert (bound.seconds, bound.binds) == (6.0, "inside")
    assert bound.in_turn == 0.5 + 4 + 6 + 4


def test_a_network_that_is_not_published_bounds_nothing():
    chip = Chip("y", (), 200.0, 160, 50.0, 20.0, None, 4)
    bound = bound_step(chip, 50.0, 100.0, [SENT])
    assert bound.between is None and "between" not in bound.parts
    alone = Collective("all-reduce", "f32", 8, 1, 1, 80, 30.0, 0.0)
    assert bound_step(chip, 50.0, 100.0, [alone]).between == 0.0


def test_a_report_adds_up():
    made = report(price=2.0)
    # 2 x 985,000 x 1000 x 200,000 FLOPs are two seconds of a v5e.
    assert made["flops"]["executed_per_device"] == 2 * 197e12
    assert made["flops"]["recomputed"] == 197e12
    assert made["flops"]["replicated"] == (4 * 2 - 5) * 197e12
    assert made["time"]["bound"] == made["time"]["compute"] == 2.0
    assert made["rate"] == {"images_per_second": 4.0, "utilization": 0.5}
    assert made["run"] == {"hours": 2.0, "chip_hours": 8.0, "price": 2.0, "cost": 16.0}
    assert made["host"] == {"images_per_second": 4.0, "images_per_core": 0.5, "cores": 8}
    twice = report(images_per_example=2)
    assert twice["host"]["images_per_second"] == 8.0 and twice["host"]["cores"] == 16
    assert "no images: their features" in format_report(report(images_per_example=0))
    text = format_report(made)
    assert "bound by FLOPs" in text and "8 cores at" in text and "$16 at $2 a chip-hour" in text


def test_a_table_says_what_its_columns_count():
    made = report()
    each = dict(kind="all-reduce", dtype="f32", devices=4, places=1, count=3, overlapped=2)
    made["collectives"] = [each | dict(bytes=0, sent_inside=0, sent_between=0)]
    text = format_report(made)
    assert "(hidden: how many of the count run while the devices compute)" in text
    assert "(hidden" not in format_report(report())


def test_arguments_that_do_not_fit_are_an_error():
    assert report()["fits"]
    too_large = report(peak=17 * 2**30)
    assert not too_large["fits"]
    assert "no: 17.00 of 16.0 GiB a device" in format_report(too_large)
    refused = CompiledStep(TRACED, None, {}, "Ran out of memory (20G).", {})
    made = make_report(Request("c.py", (), "v5e:2x2"), refused)
    assert not made["fits"] and "time" not in made
    assert "no: Ran out of memory (20G)." in format_report(made)
    first, second = format_comparison(["a", "b"], [too_large, made]).splitlines()[1:]
    assert first.split()[:3] == ["a", "no", "17.00"] and second.split() == ["b", "no", "-"]


def test_memory_is_read_from_the_assignment_of_buffers(tmp_path):
    path = tmp_path / "buffers.txt"
    path.write_text(
        "BufferAssignment:\n"
        "allocation 0: size 100, parameter 3, shape |u8[1]| at ShapeIndex {}, maybe-live-out:\n"
        " value: <1 a @0> (size=100,offset=0): u8[1]\n"
        "allocation 1: size 7, output shape is |(f32[])|, maybe-live-out:\n"
        "allocation 2: size 20, maybe-live-out:\n"
        "allocation 3: size 3, constant:\n"
        "allocation 4: size 1000, preallocated-temp:\n"
        "allocation 5: size 9, thread-local:\n"
        "allocation 6: size 5000, color 1, preallocated-temp:\n"
    )
    parts = {"arguments": 100, "outputs": 27, "temporaries": 1000, "constants": 3, "peak": 1130}
    assert read_memory(path) == parts


def test_a_compiler_is_not_stopped_before_it_has_written_text_and_buffers(tmp_path):
    buffers, text = (
        tmp_path / f"module_0001.jit_train_step.gpu_after_optimizations{end}"
        for end in (compilation.LAST, ".txt")
    )
    assert compilation._size_of_last(tmp_path) == 0
    buffers.write_text("allocation")
    assert compilation._size_of_last(tmp_path) == 0
    text.write_text("HloModule")
    assert compilation._size_of_last(tmp_path) == 19


def test_machines_of_the_same_size():
    assert count_chips("v3:4x4", slices=2) == 32 and count_devices("v3:4x4", slices=2) == 64
    assert count_devices("h100:2x4") == 8
    assert same_size("v5p", 64) == "v5p:4x4x4"
    assert same_size("h100", 64) == "h100:8x8" and same_size("h100", 4) == "h100:1x4"
    with pytest.raises(UserError, match="no topology of v5e has 512 chips; the nearest: v5e:16x16"):
        same_size("v5e", 512)
    with pytest.raises(UserError, match="12 h100 are no whole nodes of 8"):
        same_size("h100", 12)


def test_virtual_devices_lie_in_their_nodes(monkeypatch):
    monkeypatch.setattr(gpu_topologies, "has_compiler", lambda: False)
    machine = find_machine("h100:2x4")
    assert [machine.place(device) for device in machine.devices] == [0] * 4 + [1] * 4
    assert (machine.hosts, machine.num_chips, machine.chip.chips_per_host) == (2, 8, 4)
    with pytest.raises(UserError, match="h100:4x8 needs 32 virtual devices and there are 8"):
        find_machine("h100:4x8")
    with pytest.raises(UserError, match="'x9:4x4' is not known; there are v2:16x16.*h100"):
        find_machine("x9:4x4")
    with pytest.raises(UserError, match="write h100:NODESxGPUS"):
        find_machine("h100:8")


def search_config():
    return load_config("configs/align_b7.py", "--config.batch_size=64")


def test_choices_leave_out_what_does_not_divide():
    choices = search.list_choices(search_config(), 16, fsdp=[1, 3, 4], microbatches=[1, 4, 8])
    assert {choice.fsdp for choice in choices} == {1, 4}
    assert {choice.microbatches for choice in choices} == {1, 4}
    assert choices[0] == search.Choice("bfloat16", "none", 1, 1)
    assert choices[0].overrides(["text"]) == (
        "--config.microbatches=1",
        "--config.mesh.fsdp=1",
        "--config.model.text.dtype=bfloat16",
        "--config.model.text.remat=none",
    )
    with pytest.raises(UserError, match="config.batch_size = 64 divides over 24 devices with none"):
        search.list_choices(search_config(), 24, fsdp=[1], microbatches=[1])


def test_a_search_skips_settings_that_cost_more_than_one_that_fits():
    choices = search.list_choices(search_config(), 16, fsdp=[1, 4], microbatches=[1, 2])
    tried = []

    def compile_choice(choice):
        tried.append(choice)
        fits = choice.dtype == "bfloat16" and (choice.fsdp == 4 or choice.remat == "auto")
        hours = 10 * choice.microbatches + 5 * (choice.remat == "auto") + choice.fsdp
        return {"fits": fits, "choice": choice, "run": {"chip_hours": hours}}

    reports = [report for _, report in search.search(choices, compile_choice)]
    in_bfloat16 = [choice for choice in tried if choice.dtype == "bfloat16"]
    assert in_bfloat16 == [
        search.Choice("bfloat16", "none", 1, 1),
        search.Choice("bfloat16", "none", 1, 4),
        search.Choice("bfloat16", "none", 2, 1),
        search.Choice("bfloat16", "auto", 1, 1),
    ]
    assert search.find_cheapest(reports)["choice"] == search.Choice("bfloat16", "none", 1, 4)
    assert search.find_cheapest([]) is None
