"""Draws what a trained model retrieves: captions with their nearest images, and the reverse.

For example:
  python -m big_align.tools.show_retrieval --config=configs/align_flickr8k.py \\
      --workdir=DIR --output=retrieval.png
"""

from absl import flags

from big_align.tools import command_line

OUTPUT = flags.DEFINE_string("output", "retrieval.png", "The picture to write (png, pdf, svg).")
EVALUATOR = flags.DEFINE_string(
    "evaluator", None, "The evaluator whose examples are shown (default: the first retrieval)."
)
QUERIES = flags.DEFINE_integer("queries", 4, "How many captions, and images, to search with.", 1)
NEAREST = flags.DEFINE_integer("nearest", 5, "How many of the nearest to show.", 1)
SEED = flags.DEFINE_integer("seed", 0, "Random seed for choosing queries.")


def main() -> None:
    """Runs the command."""
    from big_align.evaluators.exhibits.pixels import read_pixels
    from big_align.evaluators.exhibits.retrieval import show_pairs
    from big_align.pages.plots.example_pictures import draw_examples
    from big_align.pages.plots.picture_files import check_picture
    from big_align.runs import build, check, evaluate

    check_picture(OUTPUT.value)
    config, workdir = command_line.evaluated_config(), command_line.given_workdir()
    check.check_config(config, training=False)
    tokenizer = build.build_tokenizer(config)
    retrieval = evaluate.choose_retrieval(config, tokenizer, EVALUATOR.value)
    embedder, step = evaluate.load_embedder(
        config, workdir, tokenizer, command_line.chosen_checkpoint()
    )
    pairs = retrieval.embed(embedder)
    pixels = read_pixels(retrieval.source)
    shown = show_pairs(pairs, pixels, QUERIES.value, NEAREST.value, SEED.value)
    figure = draw_examples(shown)
    figure.savefig(OUTPUT.value, dpi=100)
    print(f"{OUTPUT.value}: {workdir} at step {step}")


if __name__ == "__main__":
    command_line.run(main)
