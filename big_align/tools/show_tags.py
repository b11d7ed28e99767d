"""Draws photographs with a caption and the tags that a trained model finds (IDEA, Fig. 5).

For example:
  python -m big_align.tools.show_tags --config=configs/idea_flickr8k.py \\
      --workdir=DIR --output=tags.png

Green tags are named by another caption of the photograph, gray ones by none. With --judge=MODEL it
draws how well captions, and the texts of tags that training makes of what it finds, fit their
photographs as another model sees them (Fig. 8).
"""

from typing import TYPE_CHECKING, Any

from absl import flags

from big_align.core.errors import ConfigError, suggest
from big_align.tools import command_line

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from big_align.data.tags.tag_list import TagList
    from big_align.evaluators.exhibits.pixels import Pixels
    from big_align.evaluators.exhibits.tags import Found
    from big_align.objectives.parts.tag_texts import TagTexts

OUTPUT = flags.DEFINE_string("output", "tags.png", "The picture to write (png, pdf, svg).")
EVALUATOR = flags.DEFINE_string(
    "evaluator", None, "The evaluator whose examples are shown (default: the first found_tags)."
)
IMAGES = flags.DEFINE_integer("images", 8, "How many photographs to show.", 1)
TAGS = flags.DEFINE_integer("tags", 6, "Maximum number of tags to show per photograph.", 1)
SEED = flags.DEFINE_integer(
    "seed", 0, "Random seed for choosing photographs, those with a found tag first."
)

JUDGE = flags.DEFINE_string(
    "judge",
    None,
    "A model that compares captions and texts of tags with their photographs, instead of a "
    "picture of them: a workdir, or a folder or file of weights (the paper: CLIP ViT-B/32).",
)

JUDGED_SIZE = 256
"""Side of the central square that a judge is given; it resizes this as its own images."""


def choose_evaluator(config: Any, name: str | None) -> str:
    """Returns the name of a `found_tags` evaluator of a config, the first by default."""
    from big_align.evaluators.found_tags import FoundTags
    from big_align.runs import build

    known = build.find_evaluators(config, FoundTags)
    if name is None and known:
        return known[0]
    if name not in known:
        wanted = "evaluator" if name is None else f"evaluator {name!r}{suggest(name, known)}"
        raise ConfigError(
            f"config.evaluators has no {wanted} that is a found_tags; it has: "
            f"{', '.join(known) or 'none'}"
        )
    return name


def judge_texts(
    found: "Found", tags: "TagList", texts: "TagTexts", retain: bool, pixels: "Pixels", judge: str
) -> "Figure":
    """Compares captions and texts of tags with their photographs; prints the mean cosines.

    Texts of tags are as in training, which may `retain` the tags of the caption.
    """
    from big_align.evaluators.exhibits.tag_texts import measure_fit, write_texts
    from big_align.objectives.parts.tag_texts import choose_written
    from big_align.pages.plots.curves import draw_fits
    from big_align.use.inference.loaded_model import load

    written = texts.keep_fitting(choose_written(found.given, found.found, retain))
    rows, captions, of_tags = write_texts(found, tags.names, written)
    model = load(judge)
    zimg = model.embed_images([pixels(int(found.number[row])) for row in rows])
    kinds = {"captions": captions, "texts of tags": of_tags}
    fits = {name: measure_fit(zimg, model.embed_texts(texts)) for name, texts in kinds.items()}
    for name, fit in fits.items():
        own, other = fit.own.mean(), fit.other.mean()
        print(f"{name}: mean cosine {own:.3f}, with those of another photograph {other:.3f}")
    return draw_fits(fits)


def main() -> None:
    """Runs the command."""
    from big_align.evaluators.exhibits.pixels import read_pixels
    from big_align.evaluators.exhibits.tags import show_found
    from big_align.objectives.parts.tag_texts import TagTexts
    from big_align.pages.plots.example_pictures import draw_examples
    from big_align.pages.plots.picture_files import check_picture
    from big_align.runs import build, check, evaluate

    check_picture(OUTPUT.value)
    config, workdir = command_line.evaluated_config(), command_line.given_workdir()
    check.check_config(config, training=False)
    tokenizer = build.build_tokenizer(config)
    name = choose_evaluator(config, EVALUATOR.value)
    evaluator = build.build_evaluator(config, name, tokenizer)
    embedder, step = evaluate.load_embedder(
        config, workdir, tokenizer, command_line.chosen_checkpoint()
    )
    found = evaluator.find(embedder)
    if JUDGE.value:
        pixels = read_pixels(evaluator.source, JUDGED_SIZE)
        texts = TagTexts(evaluator.tags, tokenizer)
        retain = bool(config.objective.get("retain"))
        figure = judge_texts(found, evaluator.tags, texts, retain, pixels, JUDGE.value)
    else:
        pixels = read_pixels(evaluator.source)
        chosen = IMAGES.value, TAGS.value, SEED.value
        figure = draw_examples(show_found(found, evaluator.tags.names, pixels, *chosen), columns=2)
    figure.savefig(OUTPUT.value, dpi=100)
    some = int(found.found.any(axis=1).sum())
    print(
        f"{OUTPUT.value}: {workdir} at step {step}; it finds tags in {some} of {len(found.found)} "
        "photographs"
    )


if __name__ == "__main__":
    command_line.run(main)
