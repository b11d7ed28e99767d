"""A small model, and small data sets in the layouts of named ones."""

import json
import pathlib

import jax.numpy as jnp
import numpy as np

from big_align import weights
from big_align.data.labels.classes import read_classes
from big_align.tools import benchmark
from big_align.weights.formats import architecture
from tests.data.samples import encode_image, write_tar
from tests.models.drawn_variables import draw_variables

SIZE = 8
CLASSES = read_classes("cifar10")
WORDS = tuple(
    dict.fromkeys([*"a photo of the dog runs on grass number".split(), *map(str, range(60))])
)
SPOKEN = (*WORDS, *(f"{name}." for name in CLASSES.names))
RESNET = dict(name="resnet", variant="18", width=8, depths=(1, 1), stem="small")
BERT = dict(
    name="bert", variant="mini", width=16, depth=1, heads=2, mlp_dim=32,
    vocab_size=len(SPOKEN) + 3, max_length=8,
)  # fmt: skip
TOKENIZER = dict(name="words", words=SPOKEN, length=8)
SEEN = weights.Preprocessing(SIZE, SIZE, True, (0.5, 0.5, 0.5), (0.25, 0.25, 0.25))


def save_model(path: pathlib.Path, text: bool = True, **given) -> pathlib.Path:
    """Leaves a dual encoder, or an image tower, with weights that are drawn."""
    node = dict(image=RESNET, text=BERT) if text else RESNET
    image = jnp.zeros((1, SIZE, SIZE, 3))
    tokens = (jnp.ones((1, 1), jnp.int32), jnp.ones((1, 1), bool)) if text else ()
    variables = draw_variables(architecture.make_model(node), image, *tokens)
    more = ({"tokenizer": TOKENIZER, "temperature": 0.1} if text else {}) | given
    weights.save(path, weights.Pretrained(node, variables, SIZE, SEEN, **more), "big_align")
    return path


def draw_image(color: int, number: int) -> bytes:
    """An image of its own whose colors are near those of its class."""
    rng = np.random.default_rng([color, number])
    base = np.random.default_rng(color).integers(0, 256, 3)
    return encode_image(np.uint8(np.clip(base + rng.normal(0, 60, (SIZE, SIZE, 3)), 0, 255)))


def list_members(labels: list[int], first: int, drawn: int = 0) -> list[tuple[str, bytes]]:
    """The members of labeled images, whose keys count on from `first`; `drawn` makes others."""
    return [
        (f"{number:05d}.{kind}", data)
        for number, label in enumerate(labels, start=first)
        for kind, data in (("png", draw_image(label, number + drawn)), ("cls", str(label).encode()))
    ]


def write_cifar(
    root: pathlib.Path, train: int = 80, test: int = 40, shards: int = 2, drawn: int = 0
) -> None:
    """Leaves ROOT/cifar10 with so many images a split, all classes alike."""
    folder = root / "cifar10"
    folder.mkdir(parents=True)
    (folder / "classnames.txt").write_text("".join(f"{name}\n" for name in CLASSES.names))
    for split, count, first in (("train", train, 0), ("test", test, 10_000)):
        labels = [number % 10 for number in range(count)]
        for shard in range(shards):
            part = slice(count * shard // shards, count * (shard + 1) // shards)
            members = list_members(labels[part], first + part.start, drawn)
            write_tar(folder / f"{split}-{shard:05d}.tar", members)


def write_flickr(root: pathlib.Path, name: str = "flickr8k", count: int = 12) -> None:
    """Leaves the test split of Flickr8k, or of Flickr8k in four languages."""
    members = []
    for number in range(count):
        texts = {
            language: [f"{word} dog {number}" for word in ("a", "the", "photo", "number", "of")]
            for language in ("captions", "en", "de", "fr", "cs")
        }
        members += [
            (f"{number:05d}.png", draw_image(number, number)),
            (f"{number:05d}.json", json.dumps(texts).encode()),
        ]
    (root / name).mkdir(parents=True)
    write_tar(root / name / "test-00000.tar", members)


def run(model, data, output, **more) -> int:
    """Runs the command; returns its exit status."""
    options = {"model": model, "data": data, "output": output, "batch_size": 16} | more
    flags = [f"--{name}={value}" for name, value in options.items() if value is not True]
    return benchmark.main(flags + [f"--{name}" for name, value in options.items() if value is True])


def read_rows(output: pathlib.Path) -> dict[tuple[str, str], dict]:
    """The rows of the JSON by data set and our name of the task."""
    rows = json.loads(output.with_suffix(".json").read_text())
    return {(row["dataset"], row["settings"]["task"]): row for row in rows}
