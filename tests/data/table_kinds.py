"""Small inputs whose captions stand in a table or in files beside the images, and their faults."""

import csv
import json
import os
from collections.abc import Callable, Sequence
from typing import Any

import example_kinds as examples
import numpy as np
from example_kinds import CAPTIONS, DEEP, LABELS, PATHS, SIZE, VICTIM, Path, Random, Spoil, vary
from folder_kinds import STRANGERS
from samples import encode_image, make_pixels, write_tar


def read_as(name: str, path: str, **fields: str) -> Callable[[Path], tuple[Any, int]]:
    """Reads all of a source whose path is relative to the folder of an input."""
    return lambda folder: examples.read_examples(name=name, path=f"{folder}/{path}", **fields)


def write_images(folder: Path) -> None:
    """Writes images of all examples and what else a path may name."""
    for number in range(SIZE):
        (folder / f"{number}.png").write_bytes(encode_image(make_pixels(number)))
    os.makedirs(folder / "folder.png", exist_ok=True)
    if not os.path.lexists(folder / "loop.png"):
        os.symlink("loop.png", folder / "loop.png")
        os.symlink("/dev/zero", folder / "zero.png")
        os.mkfifo(folder / "fifo.png")


# Tables with a row a caption.


def write_rows(name: str, image: str, caption: str, delimiter: str = ",") -> Callable[..., None]:
    """Writes a table of two rows an image, far from each other."""

    def write(folder: Path, rng: Any = None, **changes: str) -> None:
        write_images(folder)
        with open(folder / name, "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, [image, caption], delimiter=delimiter)
            writer.writeheader()
            for turn in range(2):
                for number in range(SIZE):
                    row = {image: f"{number}.png", caption: f"{turn} of {number}"}
                    given = {"image": image, "caption": caption}
                    told = {given[field]: text for field, text in changes.items()}
                    writer.writerow(row | (told if number == VICTIM else {}))

    return write


ROW_CHANGES = [
    *({"image": path} for path in (*PATHS, "../..", ".", "/")),
    *({"caption": text} for text in ("", " ", "['a', 7.5]", '{"en": "a"}', '[""]', '["\\ud800"]')),
]
write_table = write_rows("x.csv", "filepath", "title", "\t")
write_metadata = write_rows("metadata.csv", "file_name", "text")


def write_metadata_rows(folder: Path, rng: Any = None, **changes: Any) -> None:
    """Writes `metadata.parquet`; changes are values of a row, with which its column must agree."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    write_images(folder)
    rows = [{"image": f"{n}.png", "caption": f"number {n}", "label": n} for n in range(SIZE)]
    rows[VICTIM] |= changes
    pq.write_table(pa.Table.from_pylist(rows), folder / "metadata.parquet")


METADATA_CHANGES = [
    *({"image": path} for path in (*(p for p in PATHS if p), "../..", None)),
    *({"caption": text} for text in ("", " ", None, '{"en": "a"}', '[""]')),
    *({"label": label} for label in (-5, 2**40)),
]


# A JSON object a line.


def write_lines(folder: Path, rng: Any = None, **changes: str) -> None:
    """Writes `metadata.jsonl`; changes are JSON."""
    write_images(folder)
    lines = []
    for number in range(SIZE):
        told = {"file_name": f"{number}.png", "text": [f"number {number}", "b"], "label": number}
        row = {name: json.dumps(value) for name, value in told.items()}
        row |= changes if number == VICTIM else {}
        lines.append("{" + ", ".join(f'"{name}": {text}' for name, text in row.items()) + "}")
    (folder / "metadata.jsonl").write_text("\n".join(lines) + "\n")


FILE_NAMES = ("7", "null", '["1.png"]', "{}", "NaN", '"../.."', '"."', '"/"', '"\\ud800.png"')
LINE_CHANGES = [
    *({"file_name": json.dumps(path)} for path in PATHS),
    *({"file_name": text} for text in FILE_NAMES),
    *({"text": text} for text in (*CAPTIONS, "[7.5, 8]", "true", '[null, "a"]', "1e999")),
    *({"label": text} for text in LABELS),
    {"other": DEEP},
]


# COCO's captions.


def write_coco(folder: Path, rng: Any = None, change: Callable[[dict], Any] = id) -> None:
    write_images(folder)
    images = [{"id": 9 - number, "file_name": f"{number}.png"} for number in range(SIZE)]
    annotations = [
        {"image_id": 9 - number, "id": 10 * turn + number, "caption": f"{turn} of {number}"}
        for turn in range(2)
        for number in range(SIZE)
    ]
    found = {"images": images, "annotations": annotations, "info": {"year": 2017}}
    change(found)
    (folder / "captions.json").write_text(json.dumps(found))


def set_in(list_name: str, **fields: Any) -> Callable[[dict], Any]:
    return lambda found: found[list_name][VICTIM].update(fields)


def write_deep_coco(folder: Path, rng: Random) -> None:
    write_coco(folder)
    text = (folder / "captions.json").read_text()
    (folder / "captions.json").write_text(text.replace("2017", DEEP))


COCO_CHANGES = [
    *(set_in("images", file_name=path) for path in (*PATHS, "../..", ".", 7, None, ["1.png"])),
    *(set_in("images", id=value) for value in (9, 1000, None, [1], "7")),
    *(set_in("annotations", image_id=value) for value in (1000, None, [1], float("nan"))),
    *(set_in("annotations", caption=value) for value in (7, None, ["a"], {}, "\ud800")),
    *(lambda found, field=field: found["images"][VICTIM].pop(field)
      for field in ("id", "file_name")),
    *(lambda found, field=field: found["annotations"][VICTIM].pop(field)
      for field in ("image_id", "caption")),
    *(lambda found, name=name, value=value: found.update({name: value})
      for name in ("images", "annotations") for value in ({}, 7, None, [7], "x", [])),
    lambda found: found["images"].append(found["images"][0] | {"file_name": "1.png"}),
]  # fmt: skip
COCO_FAULTS: list[Spoil] = [
    *vary(write_coco, [{"change": change} for change in COCO_CHANGES]),
    write_deep_coco,
]


# Files beside images, and members of shards.


def write_files(folder: Path, rng: Any = None, label: str = "", caption: str = "") -> None:
    """Writes what img2dataset's `files` holds: lists of captions are texts in the JSON."""
    for name, data in examples.tar_members(label, caption):
        path = folder / "x" / f"{int(name[:4]) % 2:05d}" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def add_image(folder: Path, rng: Random) -> None:
    """Puts a second image beside one text."""
    path = rng.choice(sorted(folder.glob("x/*/*.png")))
    path.with_suffix(".jpg").write_bytes(path.read_bytes())


def lose_text(folder: Path, rng: Random) -> None:
    rng.choice(sorted(folder.glob("x/*/*.json"))).unlink()


def place_stranger(folder: Path, rng: Random) -> None:
    path = rng.choice(sorted(folder.glob("x/*/*.*")))
    path.unlink()
    rng.choice(STRANGERS)(path)


FILE_FAULTS: list[Spoil] = [
    *vary(write_files, [{"label": text} for text in LABELS]),
    *vary(write_files, [{"caption": text} for text in CAPTIONS]),
    add_image, lose_text, place_stranger, place_stranger,
]  # fmt: skip


def write_texts(kind: str, texts: Sequence[str]) -> Callable[..., None]:
    """Writes a shard with the member `kind` and a text that tells the number of the example."""

    def write(folder: Path, rng: Any = None, text: str | bytes = "") -> None:
        members = []
        for number in range(SIZE):
            told = texts[number % len(texts)].replace("#", str(number))
            told = text if text and number == VICTIM else told
            told = json.dumps({"caption": told}) if kind == "json" else told
            members.append((f"{number:04d}.png", encode_image(make_pixels(number))))
            members.append(
                (f"{number:04d}.{kind}", told if isinstance(told, bytes) else told.encode())
            )
        write_tar(folder / "x.tar", members)

    return write


ENDS = "\r\n a # \x85b\u2028c"
write_many_lines = write_texts("txt", ["number #\nanother\n\n", "number #", ENDS])
LINES = [{"text": text} for text in ("\n\n", " \r\n", b"\xff\xfe", b"a\n\x80")]
write_lists = write_texts("json", ['["number #", "b"]', "['number #', \"it's\"]", "[#] a"])
LISTS = [
    {"text": text}
    for text in ('["a", 7.5]', '[""]', "['a', None]", '{"en": ["a"]}', "{'en': 'a'}", '["\\ud800"]',
                 '["a", ["b"]]', '["a", {}]', " ", "['a', 1j]")
]  # fmt: skip


# Parquet.


def write_parquet(folder: Path, rng: Any = None, options: Any = None, **changes: Any) -> None:
    """Writes row groups of four rows with checksums.

    Args:
      folder: where to write.
      rng: not used.
      options: of the writer.
      **changes: a column, or in parentheses the value of one example.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    write_images(folder)
    columns: dict[str, Any] = {
        "key": [f"{number:04d}" for number in range(SIZE)],
        "jpg": [encode_image(make_pixels(number)) for number in range(SIZE)],
        "caption": [f"number {number}" for number in range(SIZE)],
        "label": [number % 3 for number in range(SIZE)],
    }
    for name, change in changes.items():
        if isinstance(change, tuple):
            change = [change[0] if n == VICTIM else v for n, v in enumerate(columns[name])]
        columns[name] = change
    given = {"row_group_size": 4, "write_page_checksum": True} | (options or {})
    pq.write_table(pa.table(columns), folder / "x.parquet", **given)


def write_paths(folder: Path, rng: Any = None, path: str = "") -> None:
    """Writes a table of images in files."""
    images = [{"bytes": None, "path": f"{folder}/{number}.png"} for number in range(SIZE)]
    images[VICTIM]["path"] = path if path.startswith("/") else f"{folder}/{path}"
    write_parquet(folder, jpg=images)


def change_page(folder: Path, rng: Random) -> None:
    """Changes a caption, which the checksum of its page tells."""
    write_parquet(folder, options={"compression": "none"})
    data = (folder / "x.parquet").read_bytes()
    (folder / "x.parquet").write_bytes(data.replace(b"number 2", b"number 7", 1))


def unpack_rows(folder: Path, rng: Random) -> None:
    """Puts one image in many rows, 1 GB of them: a dictionary holds it once."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    count = 2000
    image = pa.DictionaryArray.from_arrays(np.zeros(count, np.int32), [bytes(500_000)])
    captions = [f"number {number % 9}" for number in range(count)]
    table = pa.table({"jpg": image, "caption": captions, "label": np.zeros(count, int)})
    pq.write_table(table, folder / "x.parquet", store_schema=False)  # it is bytes to who reads


PARQUET_CHANGES = [
    *({"caption": (value,)} for value in (None, "", "  ", '["a", null]', '{"en": "a"}')),
    *({"caption": [value] * SIZE}
      for value in (1.5, b"a", True, [1.5], [None], ["a", None], {"en": "a"}, [["a"]], [])),
    *({"label": (value,)} for value in (-3, 2**40)),
    *({"label": [0.0] * VICTIM + [value] + [0.0] * 3} for value in (2.9, float("nan"), 1e300)),
    *({"label": [value] * SIZE} for value in (True, "x", "1_0", b"1", {"a": 1}, [0, 2.5])),
    *({"jpg": (value,)} for value in (b"", b"no image", bytes(1000))),
    *({"jpg": [value] * SIZE} for value in ("text", 7, 1.5, [1, 2], True, {"byte": b"a"}, None)),
    *({"jpg": [{"bytes": value, "path": None}] * SIZE} for value in (7, "x", [1])),
]  # fmt: skip
STRAY = ("folder.png", "a\0b.png", "x" * 5000, "loop.png", "zero.png", "fifo.png", "../..",
         "nothing.png", "", "/dev/zero", "/")  # fmt: skip
PARQUET_FAULTS: list[Spoil] = [
    *vary(write_parquet, PARQUET_CHANGES),
    *vary(write_paths, [{"path": path} for path in STRAY]),
    change_page, unpack_rows,
]  # fmt: skip
