"""Converts a model between big_align and other libraries.

    python -m big_align.tools.convert --input=workdirs/flickr8k --output=exported --format=big_align
    python -m big_align.tools.convert --input=clip-vit-base-patch32 --part=image --format=timm \\
        --output=clip-image-tower

The input is a workdir (its newest checkpoint), a folder saved by transformers, open_clip, timm or
big_align, a repository of Hugging Face's hub (hf-hub:OWNER/NAME), or a file of weights
(.safetensors, .pt, .pth, .bin) with parameters named as in timm, open_clip or efficientnet_pytorch.
Its kind is recognized from the files, and pickled code is never run. The output is a new folder
with the weights, their config, and, where known, the tokenizer and the settings of image
processing. If anything does not fit, nothing is written. The format jax_export adds programs that
embed images and texts with JAX alone.

README.md in the folder is a model card: how to load it and, of a run, what it was trained on and
what was measured. With --push_to=OWNER/NAME the folder is uploaded to the hub, too; a repository
that is not there is made, as a private one.
"""

import argparse
import os
import sys

import jax

from big_align.pages.run_report.model_card import write_card
from big_align.runs import workdir
from big_align.tools import command
from big_align.weights import api
from big_align.weights.formats.pretrained import Pretrained
from big_align.weights.hub import upload


def main(arguments: list[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    parser = command.make_parser("convert", __doc__)
    add = parser.add_argument
    add("--input", required=True, help="a workdir, or a folder or file of weights")
    add("--output", required=True, help="the folder to write")
    add("--format", default="transformers", choices=api.FORMATS, metavar="FORMAT",
        help=f"what will open it: {', '.join(api.FORMATS)} (%(default)s)")  # fmt: skip
    add("--part", choices=("image", "text"), help="convert only this tower of a dual encoder")
    add("--push_to", metavar="OWNER/NAME", help="a repository of the hub that gets the folder, too")
    return command.run(convert, parser.parse_args(arguments))


def convert(options: argparse.Namespace) -> None:
    """Converts, and prints what the model is."""
    target = upload.check_target(options.push_to) if options.push_to else None
    pretrained = workdir.read_pretrained(options.input)
    texts = options.format in api.TEXTS_ALONE and options.part != "image"
    part = "text" if texts else options.part
    written = pretrained.tower(part) if part else pretrained
    name = target or os.path.basename(os.path.abspath(options.output))
    card = write_card(name, options.format, written, describe(written))
    api.save(options.output, pretrained if texts else written, options.format, card)
    print(f"{options.output}, for {options.format}: {describe(written)}")
    if target:
        print(upload.push_folder(options.output, target))
    if f"project_{part}" not in pretrained.variables["params"]:
        return
    if texts:
        print("With the projection: embeddings of texts can be compared with all of the model's.")
        return
    kept = " (--format=sentence_transformers keeps it)" if part == "text" else ""
    print(
        f"Without the projection that the {part} tower has in the model{kept}: its features are no "
        "embeddings that can be compared with those of the model."
    )


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
    if pretrained.bias is not None:
        facts.append(f"bias {pretrained.bias:.6g}")
    return "; ".join(facts)


if __name__ == "__main__":
    sys.exit(main())
