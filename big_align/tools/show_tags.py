"""Draws photographs with a caption and the tags that a trained model finds (IDEA, Fig. 5).

For example:
  python -m big_align.tools.show_tags --config=configs/idea_flickr8k.py \\
      --workdir=DIR --output=tags.png

Green tags are named by another caption of the photograph, gray ones by none.
"""

from typing import TYPE_CHECKING, Any

from absl import flags

from big_align.runs import command_line

if TYPE_CHECKING:
    from big_align.evaluators.found_tags import FoundTags

OUTPUT = flags.DEFINE_string("output", "tags.png", "The picture to write (png, pdf, svg).")
EVALUATOR = flags.DEFINE_string(
    "evaluator", None, "The evaluator whose examples are shown (default: the first found_tags)."
)
IMAGES = flags.DEFINE_integer("images", 8, "How many photographs to show.", 1)
TAGS = flags.DEFINE_integer("tags", 6, "Maximum number of tags to show per photograph.", 1)
SEED = flags.DEFINE_integer(
    "seed", 0, "Random seed for choosing photographs, those with a found tag first."
)


def choose_evaluator(evaluators: dict[str, Any], name: str | None) -> "FoundTags":
    """Returns a `found_tags` evaluator of a config.

    Args:
      evaluators: evaluators, by their names in the config.
      name: which one to return; None for the first.

    Raises:
      ConfigError: there is none, or none of that name.
    """
    from big_align.errors import ConfigError, suggest
    from big_align.evaluators.found_tags import FoundTags

    known = {key: each for key, each in evaluators.items() if isinstance(each, FoundTags)}
    if name is None and known:
        return next(iter(known.values()))
    if name not in known:
        wanted = "evaluator" if name is None else f"evaluator {name!r}{suggest(name, known)}"
        raise ConfigError(
            f"config.evaluators has no {wanted} that is a found_tags; it has: "
            f"{', '.join(known) or 'none'}"
        )
    return known[name]


def main() -> None:
    """Runs the command."""
    from big_align.exhibits import tags
    from big_align.exhibits.pixels import read_pixels
    from big_align.plots import tag_pictures
    from big_align.runs import build, check, evaluate

    config, workdir = command_line.evaluated_config(), command_line.WORKDIR.value
    check.check_config(config, training=False)
    tokenizer = build.build_tokenizer(config)
    evaluator = choose_evaluator(build.build_evaluators(config, tokenizer), EVALUATOR.value)
    embedder, step = evaluate.load_embedder(
        config, workdir, tokenizer, command_line.chosen_checkpoint()
    )
    found = evaluator.find(embedder)
    pixels = read_pixels(evaluator.source)
    shown = [
        tags.describe_image(found, row, evaluator.tags.names, pixels, TAGS.value)
        for row in tags.choose_images(found, IMAGES.value, SEED.value)
    ]
    tag_pictures.draw_tags(shown).savefig(OUTPUT.value, dpi=100)
    some = int(found.found.any(axis=1).sum())
    print(
        f"{OUTPUT.value}: {workdir} at step {step}; it finds tags in {some} of {len(found.found)} "
        "photographs"
    )


if __name__ == "__main__":
    command_line.run(main)
