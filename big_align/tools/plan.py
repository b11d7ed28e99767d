"""Compiles the real train step for a machine you do not have, and says what a run would need.

For example:
  python -m big_align.tools.plan --config=configs/align_l2.py --topology=v3:16x32
  python -m big_align.tools.plan --config=configs/mlcd.py:image=l14 --topology=v5e:16x16 \\
      --config.batch_size=32768 --price=1.2 --json=plan.json
  python -m big_align.tools.plan --config=configs/align_b7.py --topology=v5p:8x8x8 --search
  python -m big_align.tools.plan --config=configs/idea_cc3m.py --topology=v5e:8x8 \\
      --chips=v5e,v5p,v6e,h100 --price=v5e=1.2,v5p=4.2,v6e=2.7,h100=3

Jobs over embeddings are planned as well, from the programs that they run:
  python -m big_align.tools.plan --job=cluster --rows=390e6 --dim=768 --centers=1e6 \\
      --topology=v5e:16x16
  python -m big_align.tools.plan --job=embed --rows=390e6 --config=configs/mlcd.py:image=l14 \\
      --topology=h100:8x8

Only shapes are made, no arrays, and neither data nor vocabulary need exist; the report says what is
assumed in their place. Planning for TPUs needs libtpu (pip install '.[plan]'), but no TPU. GPUs are
given as NODESxGPUS, such as h100:8x8. Times are lower bounds at published peak rates: what they
leave out only adds to them. --config.FIELD=VALUE changes the config as in main.py. The stages of a
run (config.first) are planned one by one, with a setting of its own for each by --search, and added
up.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable
from typing import Any

from big_align.core.errors import UserError, WrongValue
from big_align.tools import command


def parse_arguments(arguments: list[str] | None) -> tuple[argparse.Namespace, list[str]]:
    """Reads the command line; also returns the rest of it, the overrides of the config."""
    parser = command.make_parser("plan", __doc__, allow_abbrev=False)
    add = parser.add_argument
    add("--config", help="the config file")
    add("--topology", required=True,
        help="the machine, such as v5p:8x8x8, or h100:8x8 (nodes x GPUs)")  # fmt: skip
    add("--slices", type=int, default=1,
        help="number of TPU slices, joined by the data center's network (%(default)s)")  # fmt: skip
    add("--json", metavar="FILE", help="a JSON file of the numbers; - prints it, and no table")
    add("--price", type=_parse_price, default={},
        help="dollars per chip-hour, for all chips or by name: 1.2 or v5e=1.2,h100=3")  # fmt: skip
    add(
        "--images_per_core", type=float,
        help="images that one core of a host loads per second (default: measured on this machine)",
    )  # fmt: skip
    add(
        "--top", type=int, default=0, metavar="N",
        help="list the N instructions that move the most bytes, and which modules they are from",
    )  # fmt: skip
    add(
        "--search", action="store_true",
        help="try microbatches, remat, dtype and --fsdp, and report the cheapest that fits",
    )  # fmt: skip
    add("--fsdp", type=_parse_numbers,
        help="values of config.mesh.fsdp that --search tries (default: the config's)")  # fmt: skip
    add("--microbatches", type=_parse_numbers, default="1,2,4",
        help="values of config.microbatches that --search tries (%(default)s)")  # fmt: skip
    add(
        "--chips", type=command.split_names,
        help="compare with the same number of these chips (v5e,h100), or with topologies of them",
    )  # fmt: skip
    add("--effort", type=_parse_effort, default="-1",
        help="XLA's effort to save time and memory of the program, from -1 to 1, or default. Less "
        "effort compiles faster; fusion, prefetching to on-chip memory and overlap are then "
        "simpler, so bytes and temporaries are higher, but FLOPs and collectives the same "
        "(%(default)s)")  # fmt: skip
    add("--machine_code", action="store_true",
        help="compile to the end, which takes longer, but shows failures of the last stage and all "
        "of the memory")  # fmt: skip
    _add_job_flags(parser.add_argument_group("jobs over embeddings").add_argument)
    options, rest = parser.parse_known_args(arguments)
    if options.config is None and options.job is None:
        parser.error("give --config, or --job")
    if options.search and options.chips:
        parser.error("--search looks for a setting for one machine: give it, or --chips")
    return options, rest


def _add_job_flags(add: Callable[..., Any]) -> None:
    add("--job", choices=("embed", "cluster", "duplicates"),
        help="plan this in place of a run: to embed --rows images with the model of --config; to "
        "find clusters and labels; to compare with test images")  # fmt: skip
    add("--rows", type=_parse_count, help="images, such as 390e6")
    add("--dim", type=int, help="numbers of an embedding")
    add("--centers", type=_parse_count, help="clusters, or test images")
    add("--labels_per_image", type=int, default=8, help="clusters of an image (%(default)s)")
    add("--iterations", type=int, default=20, help="iterations of k-means (%(default)s)")
    add("--sample", type=_parse_count,
        help="images that k-means iterates over, before once over all (default: all)")  # fmt: skip
    add("--candidates", type=int, default=8,
        help="compare in bfloat16, and so many of the nearest again in float32; 0 compares all in "
        "float32 (%(default)s)")  # fmt: skip
    add("--batch_size", type=int, help="images that a host embeds at a time (256 a device)")


def _parse_count(text: str) -> int:
    number = float(text)
    if number < 1 or number != int(number):
        raise argparse.ArgumentTypeError(f"{text} is no number of images")
    return int(number)


def _parse_numbers(text: str) -> list[int]:
    numbers = [int(number) for number in text.split(",")]
    if min(numbers) < 1:
        raise argparse.ArgumentTypeError(f"{text} are not numbers from 1 on")
    return numbers


def _parse_effort(text: str) -> float | None:
    return None if text == "default" else float(text)


def _parse_price(text: str) -> dict[str, float]:
    if "=" not in text:
        return {"": float(text)}
    return {name: float(price) for name, _, price in (p.partition("=") for p in text.split(","))}


def main(arguments: list[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    options, overrides = parse_arguments(arguments)
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    return command.run(plan, options, tuple(overrides))


def plan(options: argparse.Namespace, overrides: tuple[str, ...]) -> int:
    """Compiles what is asked for, and prints it; returns 0 if any fits, 3 if none does."""
    if options.job:
        return plan_job(options, overrides)
    from big_align.config.overrides import load_config
    from big_align.planning.reports.stages import find_stages

    config = load_config(options.config, *overrides)
    stages = find_stages(config)
    speeds = {place: _find_speed(options, stage) for place, stage in stages.items()}
    show = (lambda text: None) if options.json == "-" else print
    if options.search:
        reports = _search(options, overrides, stages, speeds, show)
    elif options.chips:
        reports = _compare(options, overrides, speeds, show)
    else:
        reports = [_plan_run(options, overrides, options.topology, speeds)]
        show(_format(reports[0]))
    _write(options.json, reports)
    if not reports:  # each has been said to be impossible
        return 1
    return 0 if any(report["fits"] for report in reports) else 3


def plan_job(options: argparse.Namespace, overrides: tuple[str, ...]) -> int:
    """Plans a job over embeddings, and prints what it needs; returns 0 if it fits, else 3."""
    from big_align.planning.jobs import tracing
    from big_align.planning.jobs.report import format_job
    from big_align.planning.jobs.requests import JobRequest

    if options.rows is None:
        raise WrongValue(f"--job={options.job} needs --rows, the number of images")
    names = ("job", "topology", "rows", "slices", "dim", "centers", "iterations", "sample")
    given = {name: getattr(options, name) for name in (*names, "batch_size", "config")}
    request = JobRequest(
        **given, labels=options.labels_per_image, candidates=options.candidates or None,
        overrides=overrides,
    )  # fmt: skip
    kind = options.topology.partition(":")[0]
    report = tracing.plan_job(request, options.price.get(kind, options.price.get("")))
    if options.json != "-":
        print(format_job(report))
    _write(options.json, [report])
    return 0 if report["fits"] else 3


def _find_speed(options: argparse.Namespace, config: Any) -> float | None:
    """Returns how many images one core loads per second, by the flag or as measured."""
    from big_align.planning import host_speed

    if options.images_per_core is not None or not config.data.get("transform"):
        return options.images_per_core
    try:
        return host_speed.measure_images_per_core(config.data.transform)
    except ValueError as error:
        raise UserError(f"config.data.transform: {error}") from error


def _format(report: dict[str, Any]) -> str:
    """Formats the report of a run, of one stage or several."""
    from big_align.planning.kernels.listing import format_kernels
    from big_align.planning.reports.report import format_report
    from big_align.planning.reports.stages import format_stages

    stages = report.get("stages")
    lines = [format_stages(report) if stages else format_report(report)]
    for each in stages or [report]:
        lines += format_kernels(each["top"]) if "top" in each else []
    return "\n".join(lines)


def _plan_run(
    options: argparse.Namespace,
    overrides: tuple[str, ...],
    topology: str,
    speeds: dict[str, float | None],
) -> dict[str, Any]:
    """Compiles the stages of a run, by their places, for a machine; returns its report."""
    from big_align.planning.reports.stages import add_up

    return add_up([_compile(options, overrides, topology, *stage) for stage in speeds.items()])


def _compile(
    options: argparse.Namespace,
    overrides: tuple[str, ...],
    topology: str,
    place: str,
    speed: float | None,
) -> dict[str, Any]:
    """Compiles a stage; returns its report."""
    from big_align.planning.compilation import Request, compile_step
    from big_align.planning.kernels.listing import describe_kernels
    from big_align.planning.reports.report import make_report

    kind = topology.partition(":")[0]
    slices = options.slices if topology == options.topology else 1
    request = Request(
        *(options.config, overrides, topology, slices, options.effort, options.machine_code),
        place=place,
    )
    price = options.price.get(kind, options.price.get(""))
    step = compile_step(request)
    report = make_report(request, step, price=price, images_per_core=speed)
    if options.top and step.text is not None:
        report["top"] = describe_kernels(step.text, kind, options.top)
    return report


def _search(options, overrides, stages, speeds, show) -> list[dict[str, Any]]:
    """Tries choices for each stage; shows each when it is done, and the cheapest at the end."""
    from big_align.planning.reports.stages import add_up
    from big_align.planning.search import find_cheapest

    tried, best = [], []
    for place, config in stages.items():
        tried.append(_search_stage(options, overrides, config, place, speeds[place], show))
        best.append(find_cheapest(tried[-1]))
    if None in best:
        show("\nnone of these fits" + f" stage {best.index(None) + 1}" * (len(best) > 1))
        return tried[best.index(None)]
    show("\n" + _format(add_up(best)))
    return tried[0] if len(best) == 1 else [add_up(best)]


def _search_stage(options, overrides, config, place, speed, show) -> list[dict[str, Any]]:
    """Tries choices for a stage, and shows each when it is done."""
    from big_align.planning import search
    from big_align.planning.machines import count_devices
    from big_align.planning.reports.report import format_comparison

    devices = count_devices(options.topology, options.slices)
    choices = search.list_choices(config, devices, options.fsdp, options.microbatches)
    towers, reports = search.list_towers(config), []

    def compile_choice(choice: search.Choice) -> dict[str, Any] | None:
        changed = (*overrides, *choice.overrides(towers, place))
        if choice.fsdp and config.mesh.get("shape"):  # which comes before fsdp
            where = f"{place}.mesh.shape".lstrip(".")
            changed += (f"--config.{where}=({devices // choice.fsdp},{choice.fsdp})",)
        try:
            return _compile(options, changed, options.topology, place, speed)
        except UserError as error:  # of this choice, such as groups that do not divide its parts
            print(f"{' '.join(choice.overrides(towers, place))}: {error}", file=sys.stderr)
            return None

    for choice, report in search.search(choices, compile_choice):
        if report is not None:
            reports.append(report)
            name = " ".join(choice.overrides(towers, place)).replace("--config.", "")
            show(format_comparison([name], reports[-1:]))
    return reports


def _compare(options, overrides, speeds, show) -> list[dict[str, Any]]:
    """Compiles for several machines, and shows each when it is done."""
    from big_align.planning.machines import count_chips, same_size
    from big_align.planning.reports.report import format_comparison

    chips = count_chips(options.topology, options.slices)
    others = [chip if ":" in chip else same_size(chip, chips) for chip in options.chips]
    done, reports = [], []
    for name in dict.fromkeys([options.topology, *others]):
        try:
            reports.append(_plan_run(options, overrides, name, speeds))
        except UserError as error:
            show(f"{name}: {error}")
            continue
        done.append(name)
        show(format_comparison(done[-1:], reports[-1:]))
    if reports:
        show("\n" + format_comparison(done, reports))
        for note in dict.fromkeys(note for report in reports for note in report["notes"]):
            show(f"note: {note}")
    return reports


def _write(path: str | None, reports: list[dict[str, Any]]) -> None:
    if path is None:
        return
    text = json.dumps(reports[0] if len(reports) == 1 else reports, indent=1)
    if path == "-":
        print(text)
        return
    with open(path, "w", encoding="utf-8") as file:
        file.write(text + "\n")


if __name__ == "__main__":
    sys.exit(main())
