"""Converts a model between big_align and other libraries.

    python -m big_align.tools.convert --input=workdirs/flickr8k --output=exported --format=transformers

The input is a workdir, a folder of transformers, open_clip, timm or big_align, or a file of weights;
what it is follows from its files. The output is a folder that does not exist yet.
"""

import argparse
import sys

import jax

from big_align.errors import UserError
from big_align.interop import api


def main(arguments: list[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m big_align.tools.convert",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--input", required=True, help="a workdir, a folder or a file of weights")
    parser.add_argument("--output", required=True, help="the folder to write")
    parser.add_argument(
        "--format", default="transformers", choices=api.FORMATS, help="who opens it (%(default)s)"
    )
    options = parser.parse_args(arguments)
    try:
        pretrained = api.load(options.input)
        api.save(options.output, pretrained, options.format)
    except (UserError, FileNotFoundError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    count = sum(x.size for x in jax.tree.leaves(pretrained.variables["params"]))
    print(f"{options.output}: {pretrained.description}, {count:,} parameters, for {options.format}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
