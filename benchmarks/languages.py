"""One model of four languages against four of one each, on the same photographs.

    python benchmarks/languages.py --output=workdirs/languages

Flickr8k's photographs have captions in English and German, five each, and in French and Czech, one
each. The image tower is published and locked (configs/align_flickr8k_multilingual.py:locked); the
text tower is trained from scratch. Rows, all with 8000 pieces and as many steps of 128 pairs:

  alone                     four models, each with a vocabulary of its language
  alone, common vocabulary  the same with the vocabulary of all four languages
  together                  one model; a caption's language is drawn by temperature
  together, 4 x             the same with as many steps as the four models have together
  without German            one model of the other three, which measures German all the same

The learning rate of each model is the best of three for the mean recall of one photograph in
fourteen, held out, with a training of its own; then it is trained on all, once a seed, and looks at
the test split once. Numbers are mean recalls (R@1, R@5 and R@10 in both directions) in percent,
with the interval of 95% of the mean over the seeds. It needs $BIG_ALIGN_DATA and the package that
the config names, and continues where it was stopped.
"""

import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from benchmarks import trials
from benchmarks.trials import Trial
from big_align.core import huge_pages

LANGUAGES = ("en", "de", "fr", "cs")
RATES = (5e-4, 1e-3, 2e-3)
HELD_OUT = 1 / 14
SIZE = 8000
MEAN = "mean_recall"
MODELS = {
    **{f"alone {each}": (each, each, 1) for each in LANGUAGES},
    **{f"common {each}": (each, "", 1) for each in LANGUAGES},
    "together": ("", "", 1),
    "together 4": ("", "", 4),
    "without de": ("without=de", "", 1),
}
"""What is trained: the argument of the config, that of its vocabulary's, and times the steps."""
ROWS = {
    "alone": {each: f"alone {each}" for each in LANGUAGES},
    "alone, common vocabulary": {each: f"common {each}" for each in LANGUAGES},
    "together": dict.fromkeys(LANGUAGES, "together"),
    "together, 4 x": dict.fromkeys(LANGUAGES, "together 4"),
    "without German": dict.fromkeys(LANGUAGES, "without de"),
}
"""Which model a row takes for each language."""


SINGLE = "alone"


def name_vocabulary(argument: str, output: pathlib.Path) -> pathlib.Path:
    """Returns the file of a vocabulary."""
    return output / f"vocabulary{argument and '_' + argument}.txt"


def make_vocabulary(argument: str, output: pathlib.Path) -> None:
    """Learns a vocabulary, once."""
    path = name_vocabulary(argument, output)
    if not path.exists():
        config = f"configs/align_flickr8k_multilingual.py{argument and ':' + argument}"
        command = [sys.executable, "-m", "big_align.tools.build_vocab", f"--config={config}"]
        command += [f"--size={SIZE}", f"--output={path}"]
        if code := subprocess.run(command, cwd=ROOT).returncode:
            sys.exit(f"failed with exit status {code}: {' '.join(command)}")


def configure(
    argument: str, vocabulary: str, times: int, split: str, rate: float, seed: int, output: str
):
    """Returns the config of a training.

    Args:
      argument: the argument of the config.
      vocabulary: the vocabulary file.
      times: the number of steps, as a multiple of the config's.
      split: "dev" holds photographs out and measures those; "test" does not.
      rate: learning rate.
      seed: the random seed.
      output: the folder of features.
    """
    from big_align.configs import align_flickr8k_multilingual

    config = align_flickr8k_multilingual.get_config(f"locked,{argument}")
    with config.unlocked():
        config.cached_features.folder = f"{output}/features"
        config.tokenizer.vocabulary = vocabulary
        config.schedule.learning_rate, config.seed = rate, seed
        config.total_steps *= times
        config.evaluate_every = config.checkpoint.every = config.total_steps
        if split == "dev":
            config.data.hold_out = HELD_OUT
            config.evaluators.retrieval.source = dict(name="held_out")
    return config


def train(**settings) -> dict[str, float]:
    """Trains a model; returns mean recalls, by language and over those that are measured.

    Args:
      **settings: those of `configure`.
    """
    from big_align.runs import train as runs

    config = configure(**settings)
    with tempfile.TemporaryDirectory() as workdir:
        found = runs.run(config, workdir)
    return {
        name.removeprefix("retrieval/"): value
        for name, value in found.items()
        if name.endswith(MEAN)
    }


def prepare(models: Iterable[str], output: pathlib.Path) -> None:
    """Makes vocabularies, and the features of the photographs by both cores."""
    from big_align.runs.cached_features import cache_features

    for argument in sorted({"", *(MODELS[name][1] for name in models)}):
        make_vocabulary(argument, output)
    vocabulary = str(name_vocabulary("", output))
    for split in ("dev", "test"):
        cache_features(configure("", vocabulary, 1, split, RATES[0], 0, str(output)), str(output))


def print_table(rows: list[str], seeds: int, output: pathlib.Path) -> None:
    """Tunes and trains the models of some rows and prints their recalls."""

    def make_trial(model: str, split: str, rate: float, seed: int) -> Trial:
        argument, words, times = MODELS[model]
        vocabulary = str(name_vocabulary(words, output))
        settings = dict(argument=argument, vocabulary=vocabulary, times=times)
        settings |= dict(split=split, rate=rate, seed=seed, output=str(output))
        return Trial(f"{model.replace(' ', '_')}-{split}-{rate:g}-{seed}", settings)

    models = dict.fromkeys(name for row in rows for name in ROWS[row].values())
    found, rates = trials.tune_and_measure(
        models,
        RATES,
        make_trial,
        (MEAN,),
        train,
        output,
        seeds,
        prepare=lambda: prepare(models, output),
    )
    measured = {row: join_languages(ROWS[row], found) for row in rows}
    chosen = {row: [f"{rates[name]:g}" for name in ROWS[row].values()] for row in rows}
    notes = {"learning rates": {row: ", ".join(dict.fromkeys(x)) for row, x in chosen.items()}}
    columns = {name: name for name in (*LANGUAGES, "mean")}
    trials.print_comparison(columns, measured, [SINGLE], notes)


def join_languages(
    models: dict[str, str], found: dict[str, list[dict[str, float]]]
) -> list[dict[str, float]]:
    """Returns the mean recall of each language and that of all, by seed.

    Args:
      models: the model of each language.
      found: the numbers of each seed, by models.
    """
    runs = []
    for each in zip(*(found[name] for name in models.values()), strict=True):
        recalls = {name: run[f"{name}_{MEAN}"] for name, run in zip(models, each, strict=True)}
        runs.append(recalls | {"mean": statistics.mean(recalls.values())})
    return runs


def main() -> None:
    """Runs what is missing and prints the table."""
    options = trials.make_parser(__doc__, seeds=3, rows=ROWS).parse_args()
    print_table(options.rows, options.seeds, options.output)


if __name__ == "__main__":
    huge_pages.restart()
    main()
