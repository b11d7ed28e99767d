"""Embeds the images of a source: one array and one list of keys for each of its shards.

For example:
  python -m big_align.tools.embed --model=workdirs/flickr8k --source='data/pairs-*.tar' \\
      --output=embeddings
  python -m big_align.tools.embed --model=clip-vit-base-patch32 --source_name=tfds \\
      --source=imagenet2012 --source_argument=split=train --what=features --output=features

The model is a workdir (its newest checkpoint), a folder of transformers, open_clip, timm or
big_align, or a file of weights. The same command again continues; whole shards are kept. With
--distributed on several hosts each embeds its part of the shards; they share the output folder.
An image that cannot be decoded is named; it keeps its row, of zeros, and its key is left empty.
Open the source as the training will, with the same members asked for, so that the places agree.
"""

import argparse
import os
import pathlib
import sys


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    """Reads the command line."""
    from big_align.components.source_flags import add_source_flags

    parser = argparse.ArgumentParser(
        prog="python -m big_align.tools.embed",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", required=True, help="a workdir, folder or file of weights")
    add_source_flags(parser)
    parser.add_argument("--transform", help="image operations (default: the model's own)")
    parser.add_argument(
        "--what", choices=("embedding", "features"), default="embedding",
        help="of unit length, or what the image tower pools before any projection (%(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--dtype", choices=("float16", "float32"), default="float16", help="(%(default)s)"
    )
    parser.add_argument(
        "--batch_size", type=int, default=256, help="images at a time, of a host (%(default)s)"
    )
    parser.add_argument(
        "--max_broken_fraction", type=float, default=0.01,
        help="stop when a larger fraction of the images is broken (%(default)s)",
    )  # fmt: skip
    parser.add_argument("--output", required=True, type=pathlib.Path, help="the folder to write")
    parser.add_argument(
        "--distributed", action="store_true", help="join the other processes, see launch/"
    )
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    options = parse_arguments(arguments)
    # What reads a workdir greets with pages, as in command_line; what really fails is an exception.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    from absl import logging

    from big_align.distributed import processes
    from big_align.errors import UserError

    logging.get_absl_logger().addFilter(lambda record: "orbax" not in record.pathname)
    try:
        embed(options)
    except (UserError, OSError) as error:
        processes.fail(error)
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def embed(options: argparse.Namespace) -> None:
    """Embeds, and says what was done."""
    from big_align.clusters import embed_source
    from big_align.components.source_flags import open_source
    from big_align.distributed import processes
    from big_align.runs import workdir

    if options.distributed:
        processes.join_processes()
    source, node = open_source(options.source, options.source_name, options.source_argument)
    pretrained = workdir.load(options.model)
    encoder = embed_source.make_encoder(
        pretrained, options.what, options.transform, options.batch_size
    )
    print(f"{options.model}: {pretrained.description}, images by {encoder.transform}")
    count = embed_source.embed_source(
        encoder,
        source,
        options.output,
        options.dtype,
        {"model": options.model, "source": node},
        options.max_broken_fraction,
    )
    total, shards = int(source.shard_sizes.sum()), len(source.shard_sizes)
    print(
        f"{options.output}: {count} of {total} images embedded now, {encoder.what} of "
        f"{encoder.dim} numbers, {shards} shards"
    )


if __name__ == "__main__":
    sys.exit(main())
