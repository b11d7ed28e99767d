"""Makes training shards from raw image-text pairs by ALIGN's rules (§3), on Apache Beam.

For example:
  python -m big_align.tools.prepare --input='raw/*.parquet' --output=data/pairs --dry_run
  python -m big_align.tools.prepare --input='raw/*.parquet' --output=data/pairs
  python -m big_align.tools.prepare --input=data/captions.csv --output=data/pairs --rules=none

--dry_run looks at a sample, which takes minutes, and writes dry_run_report.html, from which you
choose the numbers below. The job itself writes shards, report.html, statistics.json and
quarantine.jsonl, which lists everything that cannot be used. A killed job continues when the same
command is started again, and the shards are the same with any number of workers. All other flags
are passed on to Beam: --runner=DataflowRunner, or, to use all cores of a machine,
--direct_running_mode=multi_processing --direct_num_workers=8.
"""

import argparse
import dataclasses
import math
import sys
from typing import Any

from absl import logging

from big_align.core.errors import WrongValue, suggest
from big_align.prepare import rules as rules_of
from big_align.prepare.shards import FORMATS
from big_align.tools import command

NUMBERS = {
    "min_side": (int, "the shorter side of an image must have more than N pixels"),
    "max_aspect": (float, "the longer side of an image must be less than N times the shorter one"),
    "max_texts": (int, "an image may have at most N different texts"),
    "max_images": (int, "a text may belong to at most N different images"),
    "min_unigrams": (int, "a text must have at least N unigrams"),
    "max_unigrams": (int, "a text may have at most N unigrams"),
    "tokens": (int, "all tokens of a text must be among the N most frequent unigrams and bigrams"),
    "language_temperature": (
        float,
        "sample languages in proportion to n^(1/N), where n is their number of remaining pairs, "
        "equally with inf",
    ),
}


def make_parser() -> argparse.ArgumentParser:
    """Returns the parser of our flags of the command line; the others are Beam's."""
    parser = command.make_parser("prepare", __doc__, allow_abbrev=False)
    add = parser.add_argument
    add("--input", required=True,
        help="raw pairs: Parquet, tar, tables or folders; takes globs, braces and comma-separated "
        r"lists, with \, for a comma in a name")  # fmt: skip
    add("--input_name", help="the kind of --input, as in config.data.source.name (default: guessed "
        "from the path)")  # fmt: skip
    add("--input_argument", action="append", default=[], metavar="NAME=VALUE",
        help="another field of --input's source, such as caption=alt; may be repeated")  # fmt: skip
    add("--output", required=True, help="the folder for shards and the report")
    add("--rules", default="align",
        help=f"preset of the rules below: {' or '.join(rules_of.PRESETS)} "
        "(%(default)s)")  # fmt: skip
    preset = rules_of.PRESETS["align"]
    for name, (kind, told) in NUMBERS.items():
        read = _read_number(kind, math.inf if name == "language_temperature" else None)
        add(f"--{name}", type=read, default=argparse.SUPPRESS, metavar="N",
            help=f"{told}; none to disable ({_show(getattr(preset, name))} in align)")  # fmt: skip
    add("--language_floor", type=int, default=argparse.SUPPRESS, metavar="N",
        help="languages with at most N pairs are kept whole, not sampled "
        f"({preset.language_floor:,})")  # fmt: skip
    add("--duplicates", choices=rules_of.DUPLICATES, default=argparse.SUPPRESS,
        help="what to do with images that have the same pixels: merge makes one example with all "
        "their texts, first keeps the first, keep keeps all (merge in align)")  # fmt: skip
    add("--normalize", action=argparse.BooleanOptionalAction, default=argparse.SUPPRESS,
        help="clean up Unicode, white space, markup and control characters of texts")  # fmt: skip
    add("--classifier", default="", metavar="MODULE:FUNCTION",
        help="function that takes pixels [h w 3] and returns why to drop the image, or "
        "None")  # fmt: skip
    add("--languages", default="", metavar="MODULE:FUNCTION",
        help="function that takes a text and returns its language")  # fmt: skip
    add("--keep", default="", metavar="COLUMNS",
        help="other columns of Parquet files, or members of tar shards, to keep, such as "
        "url,page_url or json.url")  # fmt: skip
    add("--drop", default="", metavar="FILE",
        help="a list of images to drop: JSON lines with key and reason")  # fmt: skip
    add("--dry_run", action="store_true", help="look at a sample and write only the report")
    add("--sample", type=int, default=20_000, help="approximate number of examples in a dry run "
        "(%(default)s)")  # fmt: skip
    add("--shard_size", type=int, default=5000, help="maximum number of examples per shard "
        "(%(default)s)")  # fmt: skip
    add("--counts", choices=("exact", "sketch"), default="exact",
        help="how to count tokens and texts; a sketch is for data whose exact counts do not fit "
        "into memory (%(default)s)")  # fmt: skip
    add("--sketch_megabytes", type=int, default=64,
        help="size of each sketch in MiB (%(default)s)")  # fmt: skip
    add("--format", choices=FORMATS, default="tar", help="format of the shards (%(default)s)")
    add("--seed", type=int, default=0, help="random seed of the order of examples, and of sampling "
        "(%(default)s)")  # fmt: skip
    add("--work", help="a folder for intermediate files, which is kept (default: OUTPUT/work, "
        "which is deleted at the end)")  # fmt: skip
    add("--part_megabytes", type=int, default=4096,
        help="MiB that DirectRunner may hold of what it groups, in all its processes: it goes "
        "through pairs and shards in parts (%(default)s)")  # fmt: skip
    return parser


def _show(number: int | float | None) -> str:
    return "none" if number is None else f"{number:,}"


def _read_number(kind: type, endless: float | None) -> Any:
    """Returns a function that reads a number; `endless` is what `inf` stands for."""

    def read(text: str) -> int | float | None:
        if text in ("none", "inf"):
            return None if text == "none" else endless
        return kind(text.replace("_", ""))

    read.__name__ = kind.__name__  # argparse names the type where the text is no number
    return read


def main(arguments: list[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    return command.run(prepare, *make_parser().parse_known_args(arguments))


def prepare(options: argparse.Namespace, flags: list[str]) -> None:
    """Runs the job, and prints a summary."""
    from big_align.data.record_encoding import import_array_record
    from big_align.prepare.examination import Examination
    from big_align.prepare.inputs import find_inputs
    from big_align.prepare.on_beam import job
    from big_align.prepare.plan import JobPlan
    from big_align.prepare.sketch import choose_width

    logging.set_verbosity(logging.ERROR)  # each of thousands of files would log what it holds
    rules = make_rules(options)
    command.check_least(options, shard_size=1, sample=1, part_megabytes=1)
    if not options.output:  # as of a variable of the shell that is not set: never the root
        raise WrongValue("--output= is empty; name the folder for shards and the report")
    width = choose_width(options.sketch_megabytes)
    if options.format == "array_record":
        import_array_record()
    # argparse has no other list of a parser's flags, which Beam must not take for its own.
    ours = [option for action in make_parser()._actions for option in action.option_strings]
    beam = job.import_pipelines().read_options(flags, ours)
    output = options.output.rstrip("/") or "/"
    keep = tuple(filter(None, options.keep.split(",")))
    plan = JobPlan(
        find_inputs(options.input, options.input_name, tuple(options.input_argument), keep),
        output,
        (options.work or f"{output}/{'dry_run' if options.dry_run else 'work'}").rstrip("/"),
        Examination(rules.normalize, classifier=options.classifier, languages=options.languages),
        rules,
        options.drop,
        options.seed,
        options.shard_size,
        options.sample if options.dry_run else 0,
        keep=keep,
        sketch_width=width if options.counts == "sketch" else 0,
        shard_format=options.format,
    )
    found = job.run(plan, beam, options.part_megabytes * 2**20)
    if not options.work:
        job.remove_work(plan)
    print(job.tell(plan, found))


def make_rules(options: argparse.Namespace) -> rules_of.Rules:
    """Returns the preset, changed by the flags of the command line."""
    if options.rules not in rules_of.PRESETS:
        known = rules_of.PRESETS
        raise WrongValue(
            f"--rules={options.rules} is not {' or '.join(known)}{suggest(options.rules, known)}"
        )
    names = (*NUMBERS, "duplicates", "normalize", "language_floor")
    given = {name: getattr(options, name) for name in names if hasattr(options, name)}
    if "tokens" in given:
        given["scale_tokens"] = False
    return dataclasses.replace(rules_of.PRESETS[options.rules], **given)


if __name__ == "__main__":
    sys.exit(main())
