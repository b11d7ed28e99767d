"""IDEA on real pictures: what tags and the texts made of them teach, and whether they are right.

    python benchmarks/tags.py --output=workdirs/tags                      # all tables
    python benchmarks/tags.py --output=... --tables ladder --seeds=3

Every row is trained by `main.py`, once a seed, from an image tower that has learned the labels of
Tiny ImageNet (the paper's: of ImageNet); what is finished is not repeated. Of an image only some of
the text is given; the rest is the truth about what was missed.

  ladder   Table 4 (and 1): Flickr8k with the first caption (configs/idea_flickr8k.py)
  found    Fig. 6: precision and recall of the tags found in the photographs trained on, an epoch
           of the same runs each, and those of test photographs beside the most frequent tags
  twemoji  drawings with half of their keywords (configs/idea_twemoji.py)

It needs $BIG_ALIGN_DATA, and WordNet in $NLTK_DATA. Numbers are percentages: mean and standard
deviation over the seeds.
"""

import argparse
import io
import json
import os
import pathlib
import statistics
import sys
import tarfile
import zlib

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.image_text_label import call, print_table, train_config
from big_align.configs import common

DATA = ROOT / "data"
TOWER = "configs/unicl_flickr8k.py:labels"
LADDER = {
    "ITC": "itc",
    "+ MLR": "mlr",
    "+ MLR without SPLC": "mlr_bce",
    "+ Tag2Text": "tag2text",
    "+ RmTopFreq": "rm_top_freq",
    "+ Retain": "retain",
}
TWEMOJI = {"MLR": "mlr", "MLR without SPLC": "mlr_bce"}
REMOVED = 20
"""The most frequent tags that RmTopFreq leaves out; the paper does not say how many."""
EPOCHS = (2, 4, 6, 8)

TOWERS = {
    "202 classes by text": "zero_shot/top1",
    "image to text R@10": "retrieval/image_to_text_r10",
    "text to image R@10": "retrieval/text_to_image_r10",
}
FOUND = {
    "precision": "found/precision",
    "recall": "found/recall",
    "of the most frequent": "found/frequent_precision",
    "recall ": "found/frequent_recall",
    "mAP": "found/map",
    "of the most frequent ": "found/frequent_map",
}


def make_tag_list(path: pathlib.Path, source: str, remove_top: int = 0) -> None:
    """Makes the tag list of the first captions of a source, once."""
    if path.exists():
        return
    vocabulary = f"{common.data_dir()}/text/bert-base-uncased-vocab.txt"
    call(
        "-m",
        "big_align.tools.build_tags",
        f"--source={source}",
        "--source_argument=caption=json.captions",
        "--captions_used=1",
        "--compounds=all",
        f"--tokenizer_argument=vocabulary={vocabulary}",
        f"--remove_top={remove_top}",
        f"--output={path}",
    )


def hide_keywords(source: str, path: pathlib.Path) -> None:
    """Writes drawings whose first caption is half of their keywords and whose second is all, once.

    Which half is a function of the drawing's name and the keyword.
    """
    if path.exists():
        return
    partial = path.with_suffix(".partial")
    with tarfile.open(source) as there, tarfile.open(partial, "w") as here:
        for member in there:
            content = there.extractfile(member).read()
            if member.name.endswith(".json"):
                facts = json.loads(content)
                words = sorted(
                    facts["keywords"], key=lambda word: zlib.crc32((facts["name"] + word).encode())
                )
                texts = [", ".join(words[: -(-len(words) // 2)]), ", ".join(words)]
                content = json.dumps({"captions": texts}).encode()
            member.size = len(content)
            here.addfile(member, io.BytesIO(content))
    os.replace(partial, path)


def make_data(table: str) -> None:
    """Makes the tag lists and the drawings with hidden keywords that are not there yet."""
    DATA.mkdir(exist_ok=True)
    if table == "twemoji":
        for split in ("train", "test"):
            hide_keywords(
                f"{common.data_dir()}/twemoji/{split}-00000.tar", DATA / f"twemoji_half-{split}.tar"
            )
        make_tag_list(DATA / "twemoji_tags.json", str(DATA / "twemoji_half-train.tar"))
        return
    source = f"{common.data_dir()}/flickr8k/train-*.tar"
    make_tag_list(DATA / "flickr8k_tags.json", source)
    make_tag_list(DATA / "flickr8k_tags_rare.json", source, remove_top=REMOVED)


def train(config: str, method: str, seed: int, output: pathlib.Path) -> dict[str, float]:
    """Trains a row, or finds it trained, from a tower that has learned 202 classes."""
    tower, seeded = output / f"tower-{seed}", f"--config.seed={seed}"
    train_config(TOWER, tower, seeded)
    workdir = output / f"{config}-{method}-{seed}"
    config = f"configs/{config}.py:{method}"
    return train_config(config, workdir, seeded, f"--config.init.image={tower}")


def read_epochs(workdir: pathlib.Path) -> dict[str, float]:
    """Returns precision and recall of what was found in training, in the middle of some epochs."""
    lines = map(json.loads, (workdir / "metrics.jsonl").read_text().splitlines())
    steps = [line for line in lines if "found_precision" in line]
    found = {}
    for epoch in EPOCHS:
        near = [line for line in steps if abs(line["epoch"] - epoch) <= 0.5]
        for name in ("precision", "recall"):
            values = [line[f"found_{name}"] for line in near]
            found[f"{name}, epoch {epoch}"] = statistics.mean(values) if values else 0.0
    return found


def print_found(rows: dict[str, str], output: pathlib.Path, seeds: range) -> None:
    """Prints what the rows with a recognizer found, over the training and in the end."""
    runs = {
        title: [output / f"idea_flickr8k-{method}-{seed}" for seed in seeds]
        for title, method in rows.items()
        if method != "itc"
    }
    over = {title: [read_epochs(path) for path in paths] for title, paths in runs.items()}
    print_table("found in training", {name: name for name in next(iter(over.values()))[0]}, over)


def main() -> None:
    """Trains what is missing and prints the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=pathlib.Path, required=True)
    tables = ("ladder", "found", "twemoji")
    parser.add_argument("--tables", nargs="+", choices=tables, default=list(tables))
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    output, seeds = options.output.absolute(), range(options.seeds)
    for table in options.tables:
        make_data(table)
        rows = TWEMOJI if table == "twemoji" else LADDER
        config = "idea_twemoji" if table == "twemoji" else "idea_flickr8k"
        found: dict[str, list[dict[str, float]]] = {title: [] for title in rows}
        for seed in seeds:
            for title, method in rows.items():
                found[title].append(train(config, method, seed, output))
        if table == "ladder":
            print_table("ladder", TOWERS, found)
            continue
        found.pop("ITC", None)
        print_table(f"{table}, test pictures", FOUND, found)
        if table == "found":
            print_found(rows, output, seeds)


if __name__ == "__main__":
    main()
