"""Classifies images into classes that you name (zero-shot), or that a run has trained.

    python -m big_align.tools.classify --model=workdirs/flickr8k --names="dog,cat" *.jpg
    python -m big_align.tools.classify --model=workdirs/finetuned *.jpg
    python -m big_align.tools.classify --model=clip-vit-base-patch32 --names=imagenet --top=3 *.jpg

The model is a workdir (its newest checkpoint), a folder saved by transformers, open_clip, timm or
big_align, or a file of weights. One line is printed per image: its path, and the classes with their
probabilities, the most probable first, separated by tabs. Broken images are reported, and make the
exit status 1.
"""

import argparse
import os
import sys

from big_align.core.errors import UserError
from big_align.tools import command


def main(arguments: list[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    parser = command.make_parser("classify", __doc__)
    add = parser.add_argument
    add("--model", required=True, help="a workdir, or a folder or file of weights")
    add("--names", help="class names separated by commas, or a class list: one of the package, or "
        "a file (default: the classes of the model's own classifier)")  # fmt: skip
    add("--template", action="append",
        help="a text with {} for the class name, and perhaps {description}; may be repeated "
        "(default: those in which the run trained class texts, those of the class list, of the "
        "run's evaluators, or 'a photo of a {}.')")  # fmt: skip
    add("--top", type=int, default=5, help="how many classes to print per image (%(default)s)")
    add("--transform", help="image operations to apply (default: the model's own)")
    add("images", nargs="+", help="paths or URLs of images")
    return command.run(classify, parser.parse_args(arguments))


def classify(options: argparse.Namespace) -> int:
    """Prints a line for each image; returns 1 if any is broken."""
    from big_align.use.inference.loaded_model import load

    command.check_least(options, top=1)
    if folder := next(filter(os.path.isdir, options.images), None):
        raise UserError(f"{folder} is a folder; write {folder.rstrip('/')}/*.jpg")
    names: list[str] | str | None = options.names
    if names and "," in names:
        names = command.split_names(names)
    model = load(options.model, transform=options.transform)
    found = model.classify(options.images, names, options.template, broken="nan")
    for path, classes in zip(options.images, found, strict=True):
        if classes:
            print(path, *(f"{n} {value:.3f}" for n, value in classes[: options.top]), sep="\t")
    return 0 if all(found) else 1


if __name__ == "__main__":
    sys.exit(main())
