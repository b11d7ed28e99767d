"""Loss times description over classes and captions: iCLIP's Table 4, each row tuned.

    python benchmarks/described_classes.py --output=workdirs/described_classes
    python benchmarks/described_classes.py --output=... --rows "UniCL, names" "iCLIP, descriptions"

A batch holds few of the classes: 32 labeled photographs of 140 classes of Tiny ImageNet, and 32
captioned ones of Flickr8k, for 20 epochs of the labels. Towers are small and from scratch
(configs/iclip_tiny_imagenet.py). The losses, each with class texts that are names, and names with
WordNet's descriptions:

  UniCL  the batch's texts, in both directions
  eq. 6  the texts of all classes and the batch's captions, from images to texts alone
  iCLIP  the same, and from captions to images

What decides was named before any training, all on the 42 classes without labels: `iCLIP,
descriptions` less `UniCL, names`, which is Table 4, and less `iCLIP, names`, which is Table 2. The
other columns and rows describe.

Each row has its own learning rate, the best of four for the mean of its numbers on development
data with a training of its own: 20 classes without labels in training, half of the validation
photographs of the 140, and Flickr8k's development split. Then it is trained once a seed and looks
once at 42 other classes, at the other half of those photographs, and at Flickr8k's test split. A
row is judged by class texts as it has been trained with. For the 42 classes the text encoder is
also tuned on one and on four photographs of each, as in the paper's Fig. 4. Numbers are percentages
with the interval of 95% of the mean over the seeds, and differences, paired by seed. It needs
$BIG_ALIGN_DATA and WordNet in $NLTK_DATA, and continues where it was stopped.
"""

import os
import pathlib
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from benchmarks import trials
from benchmarks.trials import Trial
from benchmarks.unseen_classes import CLASSES, judge_classes, write_classes
from big_align.core import huge_pages

RATES = (5e-4, 1e-3, 2e-3, 4e-3)
EPOCHS, PHOTOGRAPHS = 20, 25  # of the labels; of a class
LOSSES = {
    "UniCL": dict(name="unicl", temperature=0.1),
    "eq. 6": dict(name="iclip", temperature=0.1, direction="image_to_text"),
    "iCLIP": dict(name="iclip", temperature=0.1, direction="both"),
}
TEXTS = {"names": "a photo of a {}", "descriptions": "a photo of a {}, {description}"}  # eq. 5
ROWS = {f"{loss}, {texts}": (loss, texts) for loss in LOSSES for texts in TEXTS}
BASELINES = (
    *("UniCL, names", "iCLIP, names", "UniCL, descriptions", "iCLIP, descriptions"),
    "eq. 6, names",
)
"""What other rows are compared with; all but the first two were added after numbers were known."""
COLUMNS = {
    "classes without labels": "zero_shot/top1",
    "classes with labels": "seen/top1",
    "image to text R@10": "retrieval/image_to_text_r10",
    "text to image R@10": "retrieval/text_to_image_r10",
}
"""What learning rates are chosen by, and what is looked at in the end."""
FEW_SHOTS = {
    f"without labels, {shots} shot{'s' * (shots != 1)}": f"few_shot/text_encoder_{shots}shot"
    for shots in (0, 1, 4)
}


def configure(loss: str, texts: str, split: str, rate: float, seed: int, folder: str):
    """Returns the config of a training.

    Args:
      loss: one of `LOSSES`.
      texts: one of `TEXTS`.
      split: what is measured, "dev" or "test".
      rate: learning rate.
      seed: the random seed.
      folder: the shards of `write_classes`, with described class lists.
    """
    from big_align.configs import iclip_tiny_imagenet

    template, lists = TEXTS[texts], "{}_described.json" if texts == "descriptions" else "{}.json"
    config = iclip_tiny_imagenet.get_config("unicl")
    with config.unlocked():
        config.seed, config.schedule.learning_rate = seed, rate
        labels = config.data.mixture.labels
        labels.source.path = f"{folder}/seen-train.tar"
        labels.classes = f"{folder}/{lists.format('seen')}"
        labels.templates = (template,)
        config.total_steps = EPOCHS * PHOTOGRAPHS * CLASSES["seen"] // (config.batch_size // 2)
        objective = LOSSES[loss]
        if objective["name"] == "iclip":
            objective = objective | dict(template=template)
        config.objective = objective
        zero_shot = config.evaluators.zero_shot
        zero_shot.templates = (template,)
        judge_classes(config, split, folder, lists)
        if split == "test":
            few = config.evaluators.zero_shot.to_dict()
            del few["tags"]  # a setting of zero_shot alone
            few |= dict(name="few_shot_text", shots=(1, 4), draws=3)
            few["train_source"] = few["source"] | dict(path=f"{folder}/test-train.tar")
            few["source"] = few["source"] | dict(path=f"{folder}/test-val.tar")
            config.evaluators.few_shot = few
    return config


def train(**settings) -> dict[str, float]:
    """Trains a model; returns the numbers of its evaluation.

    Args:
      **settings: those of `configure`.
    """
    from big_align.runs import train as runs

    with tempfile.TemporaryDirectory() as workdir:
        found = runs.run(configure(**settings), workdir)
    wanted = (*COLUMNS.values(), *FEW_SHOTS.values())
    return {metric: found[metric] for metric in wanted if metric in found}


def prepare(folder: pathlib.Path) -> None:
    """Makes the shards, and the class lists with descriptions."""
    from big_align.tools import describe_classes

    write_classes(folder)
    for part in CLASSES:
        path = folder / f"{part}_described.json"
        if not path.exists():
            given = f"--classes={folder}/{part}.json", f"--output={path}"
            if describe_classes.main(list(given)):
                sys.exit(f"{path} could not be made")


def print_tables(rows: list[str], seeds: int, output: pathlib.Path) -> None:
    """Tunes and trains rows; prints their numbers, and how far apart they are."""
    folder = output / "classes"

    def make_trial(row: str, split: str, rate: float, seed: int) -> Trial:
        loss, texts = ROWS[row]
        settings = dict(loss=loss, texts=texts, split=split, rate=rate, seed=seed)
        name = f"{loss}-{texts}-{split}-{rate:g}-{seed}".replace(". ", "")
        return Trial(name, settings | dict(folder=str(folder)))

    found, rates = trials.tune_and_measure(
        rows,
        RATES,
        make_trial,
        tuple(COLUMNS.values()),
        train,
        output,
        seeds,
        prepare=lambda: prepare(folder),
    )
    columns = COLUMNS | FEW_SHOTS
    trials.print_comparison(columns, found, BASELINES, {"learning rate": rates})


def main() -> None:
    """Runs what is missing and prints the tables."""
    options = trials.make_parser(__doc__, rows=ROWS).parse_args()
    print_tables(options.rows, options.seeds, options.output)


if __name__ == "__main__":
    huge_pages.restart()
    main()
