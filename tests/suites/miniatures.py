"""Miniatures of the layouts in which data sets are had: their folders and files, three examples."""

import io
import json
import pathlib
import tarfile

import numpy as np

IMAGE = b"no image: opening decodes none"
TEXTS = [["one a", "one b", "one c", "one d", "one e"], ["two"] * 5, ["three ü"] * 5]


def write_tar(path: pathlib.Path, examples: list[dict[str, bytes]]) -> None:
    """Writes examples as CLIP_benchmark's exporter does: s0000000.webp, s0000000.cls."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for number, members in enumerate(examples):
            for ending, data in members.items():
                info = tarfile.TarInfo(f"s{number:07d}.{ending}")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))


def choose_labels(layout) -> list[int]:
    """The first labels of a layout that count, and the last."""
    kept = [label for label, position in enumerate(layout.order) if position >= 0]
    return [kept[0], kept[1], kept[-1]]


def write_clip_benchmark(root: pathlib.Path, layout, split: str) -> None:
    own = layout.splits[split]
    if layout.order is None:
        examples = [{"webp": IMAGE, "txt": "\n".join(texts).encode()} for texts in TEXTS]
        (root / f"wds_{layout.name}").mkdir(parents=True)
        (root / f"wds_{layout.name}/dataset_type.txt").write_text("retrieval\n")
    else:
        labels = choose_labels(layout)
        examples = [{"webp": IMAGE, "cls": str(label).encode()} for label in labels]
    write_tar(root / f"wds_{layout.name}/{own}/0.tar", examples)
    (root / f"wds_{layout.name}/{own}/nshards.txt").write_text("1\n")
    if layout.own_names:
        names = "".join(f"{name}\n" for name in layout.own_names)
        (root / f"wds_{layout.name}/classnames.txt").write_text(names)
        templates = root / f"wds_{layout.name}/zeroshot_classification_templates.txt"
        templates.write_text("a photo of a {c}.\n")


def write_class_folders(root: pathlib.Path, layout, split: str) -> None:
    """A file in each folder: the labels that the files must have are those of the folders."""
    for name in layout.own_names:
        folder = root / layout.name / layout.splits[split] / name.replace(" ", "_")
        folder.mkdir(parents=True)
        (folder / "0.JPEG").write_bytes(IMAGE)


def write_label_lists(root: pathlib.Path, layout, split: str) -> None:
    """As FGVC Aircraft comes: a line for each image, its number and its class."""
    path = root / layout.name / layout.splits[split]
    (path.parent / "images").mkdir(parents=True)
    lines = []
    for number, label in enumerate(choose_labels(layout)):
        (path.parent / f"images/{1000 + number}.jpg").write_bytes(IMAGE)
        lines.append(f"{1000 + number} {layout.own_names[label]}\n")
    path.write_text("".join(lines))


def write_shards(root: pathlib.Path, layout, split: str) -> None:
    examples = [{"jpg": IMAGE} for _ in TEXTS]
    if layout.order is not None:
        names = "".join(f"{name}\n" for name in layout.own_names)
        (root / layout.name).mkdir()
        (root / layout.name / "classnames.txt").write_text(names)
        for example, label in zip(examples, choose_labels(layout), strict=True):
            example["cls"] = str(label).encode()
    else:
        field = layout.caption.removeprefix("json.")
        for example, texts in zip(examples, TEXTS, strict=True):
            example["json"] = json.dumps({field: texts}).encode()
    write_tar(root / layout.name / f"{layout.splits[split]}-00000.tar", examples)


def write_json_lines(root: pathlib.Path, layout, split: str) -> None:
    (root / layout.name / "img").mkdir(parents=True)
    rows = []
    for number, label in enumerate((0, 1, 1)):
        (root / layout.name / f"img/{number}.png").write_bytes(IMAGE)
        rows.append({"id": number, "img": f"img/{number}.png", "label": label, "text": "a b"})
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (root / layout.name / layout.splits[split]).write_text(text)


def write_karpathy(root: pathlib.Path, layout, split: str) -> None:
    """The images of COCO are in the folder `filepath`, others in `images`."""
    coco, images = layout.name == "coco", []
    for own in ("train", "restval", "val", "test"):
        for number, texts in enumerate(TEXTS):
            name = f"{own}{number}.jpg"
            place = {"filepath": "val2014"} if coco else {}
            sentences = [{"raw": f" {text}\n", "tokens": text.split()} for text in texts]
            images.append({"filename": name, "split": own, "sentences": sentences, **place})
            path = root / layout.name / ("val2014" if coco else "images") / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(IMAGE)
    path = root / layout.name / f"dataset_{layout.name}.json"
    path.write_text(json.dumps({"dataset": layout.name, "images": images}))


def write_lines(root: pathlib.Path, layout, split: str) -> None:
    folder = root / layout.name
    (folder / "images").mkdir(parents=True)
    list_file = folder / layout.splits[split].replace("*", "_2016_")
    list_file.parent.mkdir(parents=True, exist_ok=True)
    list_file.write_text("".join(f"{number}.jpg\n" for number in range(3)))
    for number in range(3):
        (folder / f"images/{number}.jpg").write_bytes(IMAGE)
    patterns = [layout.caption.replace("[1-5]", str(n)) for n in range(1, 6)]
    for number, pattern in enumerate(dict.fromkeys(patterns)):
        (folder / pattern).parent.mkdir(parents=True, exist_ok=True)
        (folder / pattern).write_text("".join(f"{texts[number]}\n" for texts in TEXTS), "utf-8")


def write_crossmodal(root: pathlib.Path, layout, split: str) -> None:
    (root / layout.name / "images").mkdir(parents=True)
    rows = []
    for number, texts in enumerate(TEXTS):
        (root / layout.name / f"images/{number}.jpg").write_bytes(IMAGE)
        told = {"caption": texts, "caption/tokenized": texts}
        rows.append({"image/key": str(number), "image/locale": "xx", layout.caption: told})
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (root / layout.name / layout.splits[split]).write_text(text)


WRITERS = {
    "clip_benchmark": write_clip_benchmark,
    "class_folders": write_class_folders,
    "label_lists": write_label_lists,
    "shards": write_shards,
    "json_lines": write_json_lines,
    "karpathy": write_karpathy,
    "lines": write_lines,
    "crossmodal3600": write_crossmodal,
}
"""What writes a layout of each kind; those of TFDS are in test_tfds_layouts.py."""


class Counted:
    """Examples that count how often they are read; their labels are their places in a shard."""

    class_names = None

    def __init__(self, shards: int, size: int):
        self.shard_sizes, self.broken = np.full(shards, size), np.zeros(shards, np.int64)
        self.reads = 0

    def read(self, shard, index):
        raise NotImplementedError

    def read_text(self, shard, index):
        self.reads += 1
        return TEXTS[0], (index,)

    def name(self, shard, index):
        return f"number {index}"

    def shard_name(self, shard):
        return f"shard {shard}"


def read_all(source) -> list[tuple[list[str], tuple[int, ...]]]:
    """The captions and labels of all examples."""
    sizes = enumerate(source.shard_sizes.tolist())
    return [source.read_text(shard, n) for shard, size in sizes for n in range(size)]
