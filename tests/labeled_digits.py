"""scikit-learn's digits as users have labeled photographs: folders, tar shards and tables."""

import json
import pathlib

from sklearn import datasets

from big_align.configuration.defaults import complete_config
from big_align.data.sources.digits import DIGIT_CLASSES, DIGIT_TEMPLATES
from tests import tiny_config
from tests.data.samples import encode_image, write_tar


def draw_digits(count: int) -> list[tuple[int, bytes]]:
    """The first digits, with their labels, as PNG."""
    digits = datasets.load_digits()
    gray = (digits.images[:count] * 15.9).astype("uint8")
    images = [encode_image(image[..., None].repeat(3, -1)) for image in gray]
    return list(zip(digits.target[:count].tolist(), images, strict=True))


def write_folders(folder: pathlib.Path, count: int = 120, names=DIGIT_CLASSES) -> dict:
    """Leaves FOLDER/NAME/*.png and returns the config node of the source."""
    for number, (label, image) in enumerate(draw_digits(count)):
        (folder / names[label]).mkdir(parents=True, exist_ok=True)
        (folder / names[label] / f"{number:04d}.png").write_bytes(image)
    return {"name": "folder", "path": str(folder)}


def write_shard(path: pathlib.Path, count: int = 120) -> dict:
    """Leaves a tar shard with `cls` members and returns the config node of the source."""
    members = [
        (f"{number:04d}.{kind}", data)
        for number, (label, image) in enumerate(draw_digits(count))
        for kind, data in (("png", image), ("cls", str(label).encode()))
    ]
    return {"name": "tar", "path": write_tar(path, members), "caption": "", "label": "cls"}


def write_table(path: pathlib.Path, labels: list[str]) -> dict:
    """Leaves a CSV with these labels, and its images, and returns the config node."""
    lines, images = ["image,label"], [image for _, image in draw_digits(len(labels))]
    for number, label in enumerate(labels):
        (path.parent / f"{number}.png").write_bytes(images[number])
        lines.append(f"{number}.png,{label}")
    path.write_text("\n".join(lines) + "\n")
    return {"name": "csv", "path": str(path), "label": "label"}


def write_names(path: pathlib.Path, names=DIGIT_CLASSES) -> str:
    """Leaves a class list and returns its path."""
    path.write_text(json.dumps(list(names)))
    return str(path)


def get_config(objective: str, data: dict, **fields):
    """The tiny config with labeled data; an objective without texts has no text tower.

    Args:
      objective: its name.
      data: fields of `config.data`.
      fields: further fields, as a flat dictionary of paths: {"objective.temperature": 0.1}.
    """
    config = tiny_config.get_config()
    config.objective = dict(name=objective)
    if objective == "iclip":
        config.objective.template = "a photo of a {}"  # the classes have no descriptions
    config.data.source = {}
    config.data.templates = DIGIT_TEMPLATES
    config.data.update(data)
    config.evaluators = {}
    if objective in ("cross_entropy", "supcon"):
        config.model.text = {}
    config.update_from_flattened_dict(fields)
    return complete_config(config)
