"""Shards that the pipeline of TensorFlow reads; it must do with each fault what the loader does."""

import io
import json
from typing import Any

import example_kinds as examples
import numpy as np
from example_kinds import DEEP, LABELS, SIZE, VICTIM, Path, Random, Spoil, vary
from folder_kinds import png_of_size
from PIL import Image
from samples import write_tar

from big_align.data.loading.loader import TrainLoader

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
BATCH, STEPS = 1, 2 * SIZE  # so few that two examples left are enough


def encode_jpeg(number: int) -> bytes:
    file = io.BytesIO()
    noise = np.random.default_rng(number).integers(0, 256, (4, 5, 3), np.uint8)
    Image.fromarray(noise).resize((40, 32)).save(file, "JPEG", progressive=number == 1)
    return file.getvalue()


def write_shard(folder: Path, rng: Any = None, image: bytes | None = None, **changes: str) -> None:
    members = []
    for number in range(SIZE):
        told = {"caption": json.dumps(f"photo {number}"), "label": str(number)}
        told |= changes if number == VICTIM else {}
        text = "{" + ", ".join(f'"{name}": {value}' for name, value in told.items()) + "}"
        data = encode_jpeg(number) if image is None or number != VICTIM else image
        members += [(f"{number:04d}.jpg", data), (f"{number:04d}.json", text.encode())]
    write_tar(folder / "x.tar", members)
    (folder / "vocabulary.txt").write_text("\n".join([*SPECIAL, "photo", *"0123456789"]) + "\n")


def read_both(folder: Path) -> tuple[Any, int]:
    """Reads shards with the pipeline, and compares with the loader.

    Raises:
      AssertionError: they differ.
    """
    from big_align.data.tf_data.facts import facts_of
    from big_align.data.tf_pipelines import image_text
    from big_align.runs import streams

    source = {"name": "tar", "path": f"{folder}/x.tar", "caption": "json.caption"}
    data = {
        "source": source | {"label": "json.label"}, "transform": "random_resized_crop(16)",
        "num_threads": 1, "prefetch": 1, "max_broken_fraction": 1.0,
    }  # fmt: skip
    words = {"name": "wordpiece", "vocabulary": f"{folder}/vocabulary.txt", "length": 5}
    config = {"seed": 0, "batch_size": BATCH, "data": data, "tokenizer": words}
    parts = streams.build_streams(config, streams.make_tokenizer(config))
    rows = {name: part.rows for name, part in parts.items()}
    with TrainLoader(rows, num_threads=1, prefetch=1, num_processes=0) as loader:
        wanted = [loader.batch(step) for step in range(STEPS)]
        broken = loader.broken
    dataset = image_text(config)
    got = list(dataset.take(STEPS).as_numpy_iterator())
    assert facts_of(dataset).broken() == broken, (facts_of(dataset).broken(), broken)
    for one, other in zip(got, wanted, strict=True):
        for name in other:
            if name != "image":
                np.testing.assert_array_equal(one[name], other[name])
        off = np.abs(one["image"].astype(int) - other["image"]).reshape(BATCH, -1).mean(axis=1)
        assert off.max() < 0.5, off
    return sorted({examples.digest(*(batch[name] for name in sorted(batch))) for batch in got}), (
        broken
    )


def cut_image(folder: Path, rng: Random) -> None:
    data = encode_jpeg(VICTIM)
    write_shard(folder, image=data[: rng.randrange(len(data) * 3 // 4)])


def spoil_tables(folder: Path, rng: Random) -> None:
    """Breaks the tables of Huffman's codes, which only a decoder sees."""
    data = encode_jpeg(VICTIM)
    place = data.find(b"\xff\xc4")
    write_shard(folder, image=data[: place + 5] + bytes([255] * 16) + data[place + 21 :])


def spoil_size(folder: Path, rng: Random) -> None:
    """Writes another size into the header of an image."""
    data = bytearray(encode_jpeg(VICTIM))
    place = data.find(b"\xff\xc0") + 5
    data[place : place + 4] = rng.choice((b"\xff\xff\xff\xff", b"\0\0\0\0", b"\x30\0\x30\0"))
    write_shard(folder, image=bytes(data))


CAPTIONS = ('""', "null", '{"en": "a"}', '"\\ud800"', "[]")
FAULTS: list[Spoil] = [
    *vary(write_shard, [{"caption": text} for text in (*CAPTIONS, DEEP)]),
    *vary(write_shard, [{"label": text} for text in LABELS]),
    *vary(write_shard, [{"image": data}
                        for data in (b"", b"no image", png_of_size(13300, 13300, 13300))]),
    cut_image, spoil_tables, spoil_size, spoil_size,
]  # fmt: skip
