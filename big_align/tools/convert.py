"""Converts a model between big_align and other libraries.

    python -m big_align.tools.convert --input=workdirs/flickr8k --output=exported --format=big_align
    python -m big_align.tools.convert --input=clip-vit-base-patch32 --part=image --format=timm \\
        --output=clip-image-tower

The input is a workdir (its newest checkpoint), a folder saved by transformers, open_clip, timm or
big_align, or a file of weights (.safetensors, .pt, .pth, .bin) with parameters named as in timm,
open_clip or efficientnet_pytorch. Its kind is recognized from the files, and pickled code is never
run. The output is a new folder with the weights, their config, and, where known, the tokenizer and
the settings of image processing. If anything does not fit, nothing is written.
"""

import argparse
import os
import sys

import jax
from absl import logging

from big_align.errors import UserError
from big_align.interop import api
from big_align.interop.formats.pretrained import Pretrained
from big_align.runs import workdir


def main(arguments: list[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m big_align.tools.convert",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--input", required=True, help="a workdir, or a folder or file of weights")
    parser.add_argument("--output", required=True, help="the folder to write")
    parser.add_argument(
        "--format",
        default="transformers",
        choices=api.FORMATS,
        help="the library that will open it (%(default)s)",
    )
    parser.add_argument(
        "--part", choices=("image", "text"), help="convert only this tower of a dual encoder"
    )
    options = parser.parse_args(arguments)
    # As in command_line: silence what libraries print at startup; real failures are exceptions.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    logging.get_absl_logger().addFilter(lambda record: "orbax" not in record.pathname)
    try:
        pretrained = workdir.load(options.input)
        if options.part:
            pretrained = pretrained.tower(options.part)
        api.save(options.output, pretrained, options.format)
    except (UserError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{options.output}, for {options.format}: {describe(pretrained)}")
    return 0


def describe(pretrained: Pretrained) -> str:
    """Describes a model in one line."""
    count = sum(x.size for x in jax.tree.leaves(pretrained.variables["params"]))
    facts = [f"{pretrained.description}, {count:,} parameters"]
    if seen := pretrained.preprocessing:
        facts.append(f"images by {seen.transform}")
    if pretrained.tokenizer:
        facts.append(f"tokenizer {pretrained.tokenizer['name']!r}")
    if pretrained.temperature is not None:
        facts.append(f"temperature {pretrained.temperature:.6g}")
    return "; ".join(facts)


if __name__ == "__main__":
    sys.exit(main())
