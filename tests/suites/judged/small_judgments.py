"""Miniatures of data sets of judgments: their own folders, files and fields."""

import csv
import io
import json
import pathlib

import pyarrow as pa
import pyarrow.parquet as pq

from tests.suites.measuring.small import draw_image

SUGAR = ("replace_obj", "replace_att", "replace_rel", "swap_obj", "swap_att", "add_obj", "add_att")
SIMLEX = """word1\tword2\tPOS\tSimLex999\tconc(w1)\tconc(w2)\tconcQ\tAssoc(USF)\tSimAssoc333\tSD(SimLex)
a\tphoto\tA\t1.58\t2.72\t2.81\t2\t7.25\t1\t0.41
the\tdog\tA\t9.2\t1.75\t2.46\t1\t7.11\t1\t0.67
runs\tgrass\tN\t8.77\t3.76\t2.21\t2\t5.94\t1\t1.19
on\tnumber\tN\t9.55\t2.53\t2.66\t3\t5.82\t0\t2.18
dog\tgrass\tN\t2.5\t4.0\t4.66\t4\t0.82\t0\t1.0
runs\tphoto\tV\t3.5\t2.0\t2.66\t3\t1.82\t0\t1.3
a\trun\tV\t4.5\t2.1\t1.66\t1\t2.82\t1\t1.2
the\trun\tV\t0.5\t2.1\t1.66\t4\t2.82\t1\t1.2
"""  # noqa: E501


def write_image(path: pathlib.Path, color: int, number: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(draw_image(color, number))


def write_sugar_crepe(root: pathlib.Path) -> None:
    """As git clones it, with COCO's images in another folder; images stand in several files."""
    folder = root / "sugarcrepe/data"
    folder.mkdir(parents=True)
    for place, name in enumerate(SUGAR):
        rows = {
            str(n): {
                "filename": f"{(n + place) % 6:012d}.jpg",
                "caption": f"a dog {n + place} ",
                "negative_caption": f"a photo {n * place}",
            }
            for n in range(3 + place)
        }
        (folder / f"{name}.json").write_text(json.dumps(rows, indent=4))
    for number in range(6):
        write_image(root / f"coco/val2017/{number:012d}.jpg", number, number)


def write_winoground(root: pathlib.Path) -> None:
    lines = []
    for n in range(6):
        for side in range(2):
            write_image(root / f"winoground/data/images/ex_{n}_img_{side}.png", n, 2 * n + side)
        row = {"id": n, "image_0": f"ex_{n}_img_0", "image_1": f"ex_{n}_img_1"}
        for side, said in enumerate(("the dog runs on grass", "grass runs on the dog")):
            row[f"caption_{side}"] = f"{said} {n}"
        row |= {"tag": "Noun", "secondary_tag": "", "num_main_preds": 1}
        lines.append(json.dumps(row | {"collapsed_tag": ("Object", "Relation", "Both")[n % 3]}))
    (root / "winoground/data/examples.jsonl").write_text("\n".join(lines) + "\n")


def write_boxes(root: pathlib.Path, kind: str) -> None:
    """Two boxes of each image, each with two cases; `on` is rare, and `near` is symmetric."""
    rows = []
    for n in range(8):
        box = {"bbox_x": n % 2, "bbox_y": 1, "bbox_w": 5, "bbox_h": 6 + n % 2}
        row = {"image_id": str(n), "image_path": f"{n // 4}.jpg"} | box
        said = [f"the dog runs on grass {n}", f"the grass runs on dog {n}"]
        row |= {"true_caption": said[n % 3 > 0], "false_caption": said[n % 3 == 0]}
        named = ("on", "near", "runs on", "runs on")[n % 4]
        row |= {"relation_name": named} if kind == "relation" else {"attributes": ["a", named]}
        rows.append(row)
    if kind == "attribution":
        rows *= 7
    (root / "aro").mkdir(exist_ok=True)
    (root / f"aro/visual_genome_{kind}.json").write_text(json.dumps(rows))
    for n in range(2):
        write_image(root / f"aro/images/{n}.jpg", n, n)


def write_order(root: pathlib.Path, name: str) -> None:
    """Two tables, with three captions of each image; the struct has no paths."""
    folder = root / f"aro_{name}_order/data"
    folder.mkdir(parents=True)
    for part in range(2):
        rows = []
        for n in range(6):
            image = 2 * part + n // 3
            words = ["the dog", "runs on", "grass", str(n + part)]
            row = {"images": {"bytes": draw_image(image, image), "path": None}}
            said = [" ".join(words[k:] + words[:k]) for k in range(4)] + [" ".join(words) + " a"]
            row["correct_caption"] = said.pop(n % 5)
            row |= {f"hard_text_{k}": text for k, text in enumerate(said, start=1)}
            rows.append(row)
        pq.write_table(pa.Table.from_pylist(rows), folder / f"test-{part:05d}-of-00002.parquet")


def write_crisscrossed(root: pathlib.Path, images: int = 8) -> None:
    """As git clones it, with Karpathy's file and the images of COCO in `coco`."""
    listed, sentid = [], 100
    for n in range(images):
        name = f"COCO_val2014_{n:012d}.jpg"
        write_image(root / f"coco/val2014/{name}", n, n)
        sentences = []
        for k in range(5):
            raw = f"{('a', 'the', 'photo', 'number', 'of')[k]} dog {n} {k * n}"
            sentences.append({"tokens": raw.split(), "raw": raw, "imgid": n, "sentid": sentid})
            sentid += 3
        split = "test" if n else "val"
        listed.append({
            "filepath": "val2014", "filename": name, "split": split, "sentences": sentences,
            "imgid": n, "cocoid": n, "sentids": [s["sentid"] for s in sentences],
        })  # fmt: skip
    coco = {"images": listed, "dataset": "coco"}
    (root / "coco/dataset_coco.json").write_text(json.dumps(coco))
    _write_ratings(root / "cxc/data", listed[1:])


def _write_ratings(folder: pathlib.Path, listed: list[dict]) -> None:
    folder.mkdir(parents=True)
    name = [image["filename"] for image in listed]
    said = [[f"COCO_val2014:sentid:{s['sentid']}" for s in image["sentences"]] for image in listed]
    count = len(listed)
    tables = {
        "sts": ("caption1", "caption2", [
            *((said[n][0], said[(n + 1) % count][1], 0.5 * n, "c2c_isim") for n in range(count)),
            *((said[n][0], said[n][3], 2.99 + 0.2 * (n % 2), "c2c_cocaption")
              for n in range(count)),
        ]),
        "sis": ("image1", "image2", [
            (name[n], name[(n + 2) % count], round(0.45 * n, 2), "i2i_csim") for n in range(count)
        ]),
        "sits": ("caption", "image", [
            *((said[n][2], name[(n + 1) % count], 0.7 * n, "c2i_intrasim") for n in range(count)),
            *((said[n][0], name[n], 5.0 - n, "c2i_original") for n in range(count)),
        ]),
    }  # fmt: skip
    for kind, (one, other, rows) in tables.items():
        file = io.StringIO()
        writer = csv.writer(file, lineterminator="\n")
        writer.writerows([(one, other, "agg_score", "sampling_method"), *rows])
        (folder / f"{kind}_test.csv").write_text(file.getvalue())


def write_simlex(root: pathlib.Path) -> None:
    folder = root / "simlex999/SimLex-999"
    folder.mkdir(parents=True)
    (folder / "SimLex-999.txt").write_text(SIMLEX)


def write_all(root: pathlib.Path) -> None:
    write_sugar_crepe(root)
    write_winoground(root)
    for kind in ("relation", "attribution"):
        write_boxes(root, kind)
    for name in ("coco", "flickr30k"):
        write_order(root, name)
    write_crisscrossed(root)
    write_simlex(root)
