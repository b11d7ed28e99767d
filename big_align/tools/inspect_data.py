"""Inspects the training data of a config as the loader sees it, and writes a page about it.

For example:
  python -m big_align.tools.inspect_data --config=configs/own_pairs.py:'data/pairs-*.tar' \\
      --output=data.html
  python -m big_align.tools.inspect_data --config=configs/own_pairs.py:photos/ --examples=all

It reports the number of examples, broken examples by kind, image sizes, tokens per text, how many
texts are truncated, and duplicates. The page is a single file, and shows pictures after the
transform with the tokens of their texts. --config.FIELD=VALUE changes the config as in main.py.
"""

import argparse
import os
import shlex
import sys
from typing import Any

from big_align.core.errors import WrongValue
from big_align.core.whole_files import check_file, write_whole
from big_align.tools import command

REPEATED = (
    ". Images repeat: if their keys differ, some are held out and their copies are trained on; set "
    "data.source.key=COLUMN (parquet), or merge them with big_align.tools.prepare"
)


def main(arguments: list[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    parser = command.make_parser("inspect_data", __doc__, allow_abbrev=False)
    add = parser.add_argument
    add("--config", required=True, help="the config file")
    add("--examples", default="2000", help="examples to read at random, or all (%(default)s)")
    add("--pictures", type=int, default=24, help="number of pictures to show (%(default)s)")
    add("--seed", type=int, default=0, help="random seed (%(default)s)")
    add("--output", default="data.html", help="the page to write (%(default)s)")
    options, overrides = parser.parse_known_args(arguments)
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    return command.run(inspect, options, overrides)


def inspect(options: argparse.Namespace, overrides: list[str]) -> None:
    """Looks at every part of the data, prints the numbers and writes the page."""
    from big_align.config.overrides import load_config
    from big_align.pages import data_page
    from big_align.pages.rendering import format_source
    from big_align.runs import build, dataset
    from big_align.runs.initial_weights import take_settings
    from big_align.runs.own_vocabulary import take_vocabulary

    if not (options.examples == "all" or options.examples.isdecimal() and int(options.examples)):
        raise WrongValue(f"--examples={options.examples} is neither a number above 0 nor all")
    command.check_least(options, pictures=0, seed=0)
    check_file(options.output)
    config = take_vocabulary(take_settings(load_config(options.config, *overrides)))
    tokenizer = build.build_tokenizer(config)
    found = []
    for name, part in dataset.read_parts(config).items():
        source = dataset.open_source(part)
        fields = format_source(part.source)
        held = part.loader.get("hold_out") or 0
        fields += f"; without the {100 * held:g}% that are held out" if held else ""
        report = _inspect_part(config, part, source, tokenizer, options)
        twice = REPEATED if held and report.images_twice.count else ""
        found.append((name, f"{fields}; {part.loader['transform']}{twice}", report))
        print(f"{name}: {fields}{twice}")
        for number, what, _ in data_page.summarize(report):
            print(f"  {number:>12}  {what}")
        for fault in report.faults:
            print(f"  {fault.count:>12,}  broken, as {fault.name}: {fault.reason}")
    given = f"--config={shlex.join([options.config, *overrides])}"
    page = data_page.write_page("Training data", given, found)
    write_whole(options.output, page.encode("utf-8", "backslashreplace"))
    print(options.output)


def _inspect_part(config: Any, part: Any, source: Any, tokenizer: Any, options: Any) -> Any:
    from big_align.config.components import signatures, tables, transforms
    from big_align.data.labels.prompts import choose_templates
    from big_align.data.labels.templates import fill_templates
    from big_align.data.loading import inspection
    from big_align.data.loading.settings import LoaderSettings
    from big_align.data.text.shortening import Shortener

    # An operation that does not fit is an error that names the field.
    transforms.shape_of_image(part.loader["transform"], f"{part.where}.transform")
    texts = None
    if config.tokenizer.name != "none":
        node = config.tokenizer.to_dict()
        if tokenizer.length > 1:  # a class name is one id
            node["length"] = max(inspection.LONGEST, tokenizer.length)
        long = signatures.make_named(tables.TOKENIZERS, node, "config.tokenizer")
        texts_of = lambda captions, labels: captions  # noqa: E731
        if part.classes is not None:
            templates = choose_templates(part.classes, part.loader.get("templates"))
            classes = list(zip(part.classes.names, part.classes.descriptions, strict=True))

            def texts_of(captions: list[str], labels: tuple[int, ...]) -> list[str]:
                known = [classes[label] for label in labels if label < len(classes)]
                return [text for each in known for text in fill_templates(templates, *each)]

        texts = inspection.Texts(tokenizer.length, long, texts_of, Shortener(tokenizer))
    most = None if options.examples == "all" else int(options.examples)
    return inspection.inspect_source(
        source,
        part.loader["transform"],
        texts,
        most,
        options.pictures,
        options.seed,
        part.loader.get("max_pixels", LoaderSettings.max_pixels),
    )


if __name__ == "__main__":
    sys.exit(main())
