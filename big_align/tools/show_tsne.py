"""Draws a map of class names as models see them, by t-SNE (UniCL, Fig. 4, 9 and 10).

    python -m big_align.tools.show_tsne --models workdirs/labels workdirs/both \\
        --names=imagenet --others=data/imagenet21k.json --output=tsne.png

Each model gets a panel. Both lists have the same templates, so that only the names differ. Those of
the first list have one color and those of the second another; some of the first, given by --queries
or drawn at random, are written out and joined to the nearest names of the whole second list, which
are also printed. A model is a workdir (its newest checkpoint), a folder saved by transformers,
open_clip, timm or big_align, or a file of weights.
"""

import argparse
import random
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

    from big_align.use.inference.loaded_model import LoadedModel

from big_align.core.errors import UserError
from big_align.tools import command

SHOWN = 6
"""How many queries are drawn at random when none are given."""
CHUNK = 1000
"""How many names are embedded at a time, with all of their templates."""


def main(arguments: list[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    parser = command.make_parser("show_tsne", __doc__)
    add = parser.add_argument
    add("--models", nargs="+", required=True, help="workdirs, or folders or files of weights")
    add("--names", required=True, help="the first class list: one of the package, or a file")
    add("--others", required=True, help="the second class list, without the names in both")
    add("--queries",
        help="comma-separated names of the first list to write out (default: some at "
        "random)")  # fmt: skip
    add("--template", action="append",
        help="a text with {} for the class name; may be repeated (default: those of "
        "--names)")  # fmt: skip
    add("--most", type=int, default=1000, help="most names of a list in the map (%(default)s)")
    add("--seed", type=int, default=0, help="random seed (%(default)s)")
    add("--output", default="tsne.png", help="the picture to write: png, pdf or svg (%(default)s)")
    return command.run(show, parser.parse_args(arguments))


def show(options: argparse.Namespace) -> None:
    """Embeds the names with every model and writes the picture."""
    from big_align.data.labels.classes import read_classes
    from big_align.data.labels.prompts import choose_templates, fill_class_templates
    from big_align.pages.plots.picture_files import check_picture
    from big_align.pages.plots.tsne_pictures import Concepts, draw_concepts
    from big_align.use.inference.loaded_model import load

    check_picture(options.output)
    command.check_least(options, most=1)
    rng = random.Random(options.seed)
    first = read_classes(options.names)
    wanted = find_queries(options.queries, first.names, options.names)
    chosen = choose(list(range(len(first))), options.most, rng, wanted)
    second = read_classes(options.others)
    known = {name.lower() for name in first.names}
    free = [n for n, name in enumerate(second.names) if name.lower() not in known]
    if not free:
        raise UserError(f"every name of {options.others} is in {options.names} too")
    queries = wanted or sorted(rng.sample(chosen, min(SHOWN, len(chosen))))

    try:
        templates = choose_templates(first, options.template)
        texts = [fill_class_templates(classes, templates) for classes in (first, second)]
    except ValueError as error:
        raise UserError(f"--template: {error}") from error
    kept = zip(texts, (chosen, free), strict=True)
    prompts = [[of_class[n] for n in numbers] for of_class, numbers in kept]
    models = {}
    for path in options.models:
        model = load(path)
        models[path] = Concepts(*(embed_names(model, part) for part in prompts))
    places = [chosen.index(n) for n in queries]
    nearest = {n for concepts in models.values() for n in concepts.nearest(places).tolist()}
    others = choose(list(range(len(free))), options.most, rng, sorted(nearest))
    models = {path: x._replace(second=x.second[others]) for path, x in models.items()}
    names = [first.names[n] for n in chosen], [second.names[free[n]] for n in others]
    lists = Path(options.names).stem, Path(options.others).stem
    draw_concepts(models, names, lists, places, options.seed).savefig(options.output, dpi=100)
    for path, concepts in models.items():
        for place, found in zip(places, concepts.nearest(places), strict=True):
            cosine = concepts.first[place] @ concepts.second[found]
            print(path, names[0][place], names[1][found], f"{cosine:.3f}", sep="\t")


def embed_names(model: "LoadedModel", texts: list[list[str]]) -> "np.ndarray":
    """Returns an embedding of each name [n d], given its texts."""
    import numpy as np

    from big_align.evaluators.zero_shot import average_texts

    rows = []
    for start in range(0, len(texts), CHUNK):
        part = texts[start : start + CHUNK]
        ztxt = model.embed_texts([text for group in part for text in group])
        rows.append(np.float32(average_texts(ztxt, [len(group) for group in part])))
    return np.concatenate(rows)


def find_queries(given: str | None, names: tuple[str, ...], where: str) -> list[int]:
    """Returns the positions of the names that the command line lists."""
    wanted = command.split_names(given or "")
    for name in wanted:
        if name not in names:
            raise UserError(f"--queries: {name!r} is not in the class list {where}")
    return [names.index(name) for name in dict.fromkeys(wanted)]


def choose(
    places: list[int], most: int, rng: random.Random, wanted: list[int] | None = None
) -> list[int]:
    """Returns at most `most` positions in order, always with those that are wanted."""
    kept = set(wanted or ())
    rest = [place for place in places if place not in kept]
    kept |= set(rng.sample(rest, min(len(rest), max(most - len(kept), 0))))
    return sorted(kept)


if __name__ == "__main__":
    sys.exit(main())
