"""Builds an index of images and their captions, to be searched by texts and images.

For example:
  python -m big_align.tools.index --model=workdirs/flickr8k --source='photos/**/*.jpg' \\
      --output=index
  python -m big_align.tools.index --model=workdirs/flickr8k --source='data/pairs-*.tar' \\
      --metadata=places.csv --output=index
  python -m big_align.tools.index --model=workdirs/flickr8k --source='data/pairs-*.tar' \\
      --store=lancedb:s3://bucket/index

Running the same command again continues where it stopped, and brings the index up to date: new
images are added, changed ones are embedded again, and those that are gone are dropped. Images that
cannot be decoded are reported and left out; those without a caption are indexed. One process builds
an index, so there is no --distributed. The model is a workdir (its newest checkpoint), a folder
saved by transformers, open_clip, timm or big_align, or a file of weights.
"""

import argparse
import os
import sys
from typing import Any

from absl import logging

from big_align.core.errors import UserError, WrongValue
from big_align.tools import command


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    """Reads the command line."""
    from big_align.config.components.source_flags import add_source_flags

    parser = command.make_parser("index", __doc__)
    add = parser.add_argument
    add("--model", required=True, help="a workdir, or a folder or file of weights")
    add_source_flags(parser)
    add("--metadata",
        help="a table with one row per image, whose columns can filter searches: CSV, TSV, JSON "
        "lines or Parquet (default: the columns of the source, if it has any)")  # fmt: skip
    add("--metadata_key", help="the column that names the images (found by usual names)")
    add("--transform", help="image operations to apply (default: the model's own)")
    add("--dtype", choices=("float16", "float32"), default="float16",
        help="type of the stored embeddings (%(default)s)")  # fmt: skip
    add("--thumbnail", type=int, default=256,
        help="longer side of thumbnails in pixels; 0 for none (%(default)s)")  # fmt: skip
    add("--search", default="auto",
        help="how the index will be searched: exact, scann in a folder, ivf_rq in LanceDB, or "
        "auto, which takes one of these from 50,000 images on, if it reaches the recall "
        "(%(default)s)")  # fmt: skip
    add("--recall", type=float, default=0.95,
        help="the fraction of the 10 nearest that ScaNN or partitions must find "
        "(%(default)s)")  # fmt: skip
    place = parser.add_mutually_exclusive_group(required=True)
    place.add_argument("--output", type=command.local_path, help="the folder to write")
    place.add_argument("--store",
        help="another store to write: lancedb:PATH, or lancedb:s3://BUCKET/NAME, for an index past "
        "one machine")  # fmt: skip
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    return command.run(index, parse_arguments(arguments))


def index(options: argparse.Namespace) -> None:
    """Builds the index, and prints what was done."""
    from big_align.config.components.source_flags import open_source
    from big_align.parallel.distributed import processes
    from big_align.use.inference.loaded_model import load
    from big_align.use.search.index_building import IndexBuilder
    from big_align.weights.hub.download import fix_revision

    processes.check_alone("an index is built by one process; start it without a launcher")
    if not 0 < options.recall <= 1:
        raise WrongValue(f"--recall={options.recall:g} must be above 0, and at most 1")
    if not 0 <= options.thumbnail <= 2048:
        raise WrongValue(f"--thumbnail={options.thumbnail} must be from 0 to 2048 pixels")
    given = options.source, options.source_name, options.source_argument
    source, node = open_source(*given, captions=True, needs_texts=False)
    metadata = read_metadata(options, source)
    there = os.path.exists(options.model)
    path = os.path.abspath(options.model) if there else fix_revision(options.model)
    model = load(path, transform=options.transform, progress=False)
    made_by = {"model": path, "source": node}
    place = options.output or options.store
    builder = IndexBuilder(model, place, made_by, options.dtype, options.thumbnail)
    report = builder.build(source, metadata, options.recall, options.search)
    print(
        f"{place}: {report.images} images, {report.embedded} embedded now, "
        f"{report.removed} removed, {report.broken} broken; {report.captions} captions"
    )
    if report.without_texts:
        print(f"{report.without_texts} images have no captions that can be used")
    if report.described is not None:
        print(f"metadata of {report.described} images")
    for kind, noted in report.search.items():
        if noted["rows"]:
            print(f"{kind}: {_tell_search(noted)}")


def read_metadata(options: argparse.Namespace, source: Any) -> Any:
    """Reads the table of metadata that is named, or else the columns of the source."""
    from big_align.use.search import metadata

    if options.metadata is not None:
        return metadata.MetadataTable(options.metadata, options.metadata_key)
    if options.metadata_key:
        raise WrongValue("--metadata_key is the column of a table: give --metadata=FILE")
    try:
        return metadata.read_source(source)
    except UserError as error:  # the images can be indexed all the same
        logging.warning("no metadata: %s", error)
        return None


def _tell_search(noted: dict[str, Any]) -> str:
    if noted["method"] == "exact":
        return f"compared with all {noted['rows']}"
    recalls = ", ".join(f"{value:.3f} by {name}" for name, value in noted["recall@10"].items())
    parts = "leaves" if "leaves" in noted else "partitions"
    return (
        f"{noted['method']}, {noted['searched']} of {noted[parts]} {parts}, {noted['reordered']} "
        f"times as many compared again; recall@10 {recalls}; built in "
        f"{noted['seconds_to_build']:.0f} s"
    )


if __name__ == "__main__":
    sys.exit(main())
