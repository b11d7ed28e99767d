"""Measures any model on named data sets, and writes a table.

For example:
  python -m big_align.tools.benchmark --model=workdirs/flickr8k --benchmarks=cifar10,flickr8k \\
      --data=data --output=results.csv
  python -m big_align.tools.benchmark --model=clip-vit-base-patch32 --benchmarks=vtab+,robustness \\
      --tasks=zero_shot,linear_probe,few_shot,knn --data=data --output=results.csv \\
      --page=results.html

The model is a workdir (its newest checkpoint), WORKDIR/checkpoints/STEP or .../best, a folder saved
by transformers, open_clip, timm or big_align, or a file of weights. --benchmarks takes data sets
and suites; --list shows them all. A data set that is missing from --data is skipped, with a line
that says how to get it.

--output=results.csv has the columns of CLIP_benchmark; results.json beside it has everything.
Running the same command again continues: what was measured with the same weights and settings is
not measured again, and each image is embedded only once, for all tasks. Several models may share
one output.
"""

import argparse
import os
import pathlib
import sys

from big_align.core.errors import UserError, WrongValue
from big_align.core.whole_files import check_file
from big_align.tools import command


def main(arguments: list[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    from big_align.suites.measuring.plans import DEFAULT_TASKS, EQUAL_CLASSES, TASKS

    parser = command.make_parser("benchmark", __doc__)
    add = parser.add_argument
    add("--model", help="a workdir, or a folder or file of weights")
    add("--benchmarks", help="comma-separated names of data sets and suites")
    add("--data", help="the folder that holds all data sets")
    add("--output", help="the .csv file to write; a .json is written beside it")
    add("--list", action="store_true", help="list the data sets and suites, and exit")
    add("--tasks", default=",".join(DEFAULT_TASKS), help="comma-separated tasks: "
        f"{', '.join(TASKS)}; each data set takes those that fit it (%(default)s)")  # fmt: skip
    add("--cache", help="the folder for embeddings (default: OUTPUT, ending in .embeddings)")
    add("--page", help="an HTML file to write, with bars beside published numbers")
    add("--transform", help="image operations to apply (default: the model's own)")
    add("--template", action="append", help="a text with {} where the class name goes, and "
        "perhaps {description}; give it again for more, which are averaged (default: that of a "
        "suite, of the class texts that the run has trained, or each data set's own)")  # fmt: skip
    add("--equal_classes", choices=EQUAL_CLASSES, default=EQUAL_CLASSES[0],
        help="what zero_shot does with classes of one text, of which CLIP's list of ImageNet has "
        "two pairs: counts their images as wrong, or takes the first, as CLIP's paper does "
        "(%(default)s)")  # fmt: skip
    add("--shots", default="1,2,4,8,16", help="comma-separated numbers of training images per "
        "class for few_shot and few_shot_text (%(default)s)")  # fmt: skip
    add("--draws", type=int, default=3, help="random draws of these images (%(default)s)")
    add("--batch_size", type=int, help="images per batch on each host (256; 64 on CPUs)")
    add("--max_broken_fraction", type=float, default=0.01, help="give up on a data set if more "
        "than this fraction of its images is broken (%(default)s)")  # fmt: skip
    add("--allow_trained", action="store_true",
        help="also measure on data that the model was trained on")  # fmt: skip
    add("--distributed", action="store_true", help="run as one of several processes, see launch/")
    options = parser.parse_args(arguments)
    needed = () if options.list else ("model", "benchmarks", "data", "output")
    if missing := [f"--{name}" for name in needed if not getattr(options, name)]:
        parser.error(f"the following arguments are required: {', '.join(missing)}")
    return command.run(print_names) if options.list else command.run(measure, options)


def print_names() -> None:
    """Prints the suites and the data sets."""
    from big_align.suites import catalog

    lines = ["suites:", *(f"  {name:<18} {about}" for name, about in catalog.suites().items())]
    lines.append("data sets:")
    for name in catalog.names():
        benchmark = catalog.read_benchmark(name)
        lines.append(f"  {name:<30} {benchmark.task:<15} {benchmark.title}")
    try:
        print("\n".join(lines), flush=True)
    except BrokenPipeError:  # the reader has seen enough, as in --list | head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def measure(options: argparse.Namespace) -> int:
    """Measures, and prints a table; returns 0 if something was measured and nothing failed."""
    import jax

    from big_align.data.loading.broken import check_fraction
    from big_align.parallel.distributed import agreement
    from big_align.suites.measuring import page, plans, results, runner
    from big_align.suites.measuring.embeddings import EmbeddingStore
    from big_align.suites.measuring.tasks import TaskSettings
    from big_align.training.stopping import StopSignals
    from big_align.use.inference import loaded_model

    command.begin_processes(options.distributed)
    names = read_names(options.benchmarks, read_templates(options.template))
    settings = TaskSettings(
        read_numbers(options.shots), options.draws, equal_classes=options.equal_classes
    )
    check_fraction(options.max_broken_fraction)
    if options.page:
        check_file(options.page, "--page")
    files = results.ResultFiles(options.output)
    if jax.process_index() == 0:
        files.begin()
    cache = options.cache or str(pathlib.Path(options.output).with_suffix(".embeddings"))
    tasks = plans.check_tasks(command.split_names(options.tasks))
    order = runner.Order(
        options.model, names, tasks, options.data, settings, options.allow_trained,
        os.path.join(cache, "indexes"),
    )  # fmt: skip
    model = loaded_model.load(options.model, transform=options.transform, progress=False)
    store = EmbeddingStore(
        model, cache, options.transform, options.batch_size, options.max_broken_fraction
    )
    note = "stopped on request; the same command continues"
    with StopSignals() as signals, signals.interrupting(note):
        report = runner.run_benchmarks(order, model, store, files)
    if jax.process_index() == 0:
        print(results.write_table(report.rows) if report.rows else "nothing was measured")
        if report.rows:
            print(f"{files.path}: {report.measured} results now, {len(files.rows)} in all")
        if options.page and files.rows:
            page.write_page(files.rows, options.page)
            print(f"page: {options.page}")
    return agreement.share("status", int(not report.rows or report.failed > 0))


def read_names(
    text: str, templates: tuple[str, ...] | None = None
) -> dict[str, tuple[str, ...] | None]:
    """Returns the data sets that names stand for, with their templates.

    Those of the command line are for all; else suites have theirs.
    """
    from big_align.suites import catalog

    names = command.split_names(text)
    if not names:
        raise WrongValue(f"--benchmarks={text} names nothing; --list shows all that there is")
    if templates:
        return dict.fromkeys(catalog.expand(names), templates)
    return catalog.choose_texts(names)


def read_templates(given: list[str] | None) -> tuple[str, ...] | None:
    """Returns the templates of the command line, None if there are none."""
    from big_align.data.labels import templates

    try:
        return None if given is None else templates.read_templates(given)
    except UserError as error:
        raise UserError(f"--template: {error}") from error


def read_numbers(text: str) -> tuple[int, ...]:
    """Reads whole numbers above 0, separated by commas."""
    parts = text.split(",")
    if not all(part.strip().isdecimal() and int(part) > 0 for part in parts):
        raise WrongValue(f"--shots={text} must be whole numbers from 1 on, as in 1,2,4,8,16")
    return tuple(int(part) for part in parts)


if __name__ == "__main__":
    sys.exit(main())
