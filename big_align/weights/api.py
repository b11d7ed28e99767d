"""One call reads any model that big_align knows, one writes it for another library."""

import contextlib
import dataclasses
import os
import pathlib
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from absl import logging

from big_align.core.errors import (
    ConfigError,
    FieldError,
    UserError,
    WeightsMismatch,
    WrongValue,
    check_known,
    put_in_a_line,
)
from big_align.data.package_files import locate
from big_align.models.dual_encoder import TOWERS
from big_align.weights import jax_export_format, open_clip_format, sentence_transformers_format
from big_align.weights.arrays.weight_files import list_names, write_folder
from big_align.weights.formats import (
    efficientnet_pytorch_format,
    native_format,
    swin_checkpoints,
    timm_format,
    transformers_format,
)
from big_align.weights.formats.pretrained import Pretrained
from big_align.weights.hub.download import fetch_repository
from big_align.weights.hub.names import PREFIX, parse_name

FORMATS: dict[str, ModuleType] = {
    "big_align": native_format,
    "transformers": transformers_format,
    "open_clip": open_clip_format,
    "timm": timm_format,
    "jax_export": jax_export_format,
    "sentence_transformers": sentence_transformers_format,
}
"""Each has write(pretrained)."""

FOLDERS = (native_format, transformers_format, open_clip_format, timm_format)
"""Those of folders, which also have list_files(path, names), for what is fetched of a hub."""

READ = (*FOLDERS, efficientnet_pytorch_format, swin_checkpoints)
"""Each has read(path), and recognize(path, names), which takes a folder and no names, or a file of
weights and the names of its arrays."""

OTHERS = ("transformers", "open_clip", "timm")
"""Formats with what another library has a place for: no classifier, and few image operations."""

TEXTS_ALONE = ("sentence_transformers",)
"""Formats that hold what embeds texts, with the projection, and nothing of images."""

MADE_OF = {"jax_export": "big_align"}
"""Formats that hold whatever another one does, and take longer to make."""
CARD = "README.md"

LONGEST_MESSAGE = 5000
"""Characters; the content of a config may be of any length."""

NOT_A_MODEL = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""What is raised if a config does not describe a model."""

OF_A_CONFIG = (ConfigError, FieldError, WeightsMismatch, WrongValue)
"""What is raised if a config has a value that is not possible, and may not name its file."""


@contextlib.contextmanager
def explained(path: pathlib.Path) -> Iterator[None]:
    """Turns any error that a config causes by not describing a model into a `WeightsMismatch`."""
    try:
        yield
    except UserError as error:
        text = str(error)
        if len(text) > LONGEST_MESSAGE:
            raise WeightsMismatch(f"{text[:LONGEST_MESSAGE]}...") from error
        if type(error) in OF_A_CONFIG and str(path) not in text:
            raise WeightsMismatch(f"{path}: {text}") from error
        raise
    except NOT_A_MODEL as error:
        # A config may hold anything, and towers check their sizes only when they are built.
        raise WeightsMismatch(
            f"{path}: its config does not describe a model that can be built "
            f"({type(error).__name__}: {put_in_a_line(str(error))})"
        ) from error


def read(path: str | os.PathLike) -> Pretrained:
    """Reads a model with its weights; the files determine what it is.

    `big_align.load` reads workdirs too.

    Args:
      path: a folder of transformers, open_clip, timm or big_align, or a file of weights
        (`.safetensors`, `.pt`, `.bin`, `.pth`) with the names of timm, open_clip,
        efficientnet_pytorch, UniCL or MoBY. Pickled code is never run. `package:MODULE/PATTERN`
        names one in an installed package, and `hf-hub:OWNER/NAME`, perhaps with `@REVISION`, a
        folder on Hugging Face's hub; so does `OWNER/NAME` if there is no folder OWNER here.

    Returns:
      The model; `.model` and `.variables` are what flax needs, `.preprocessing` and `.tokenizer`
      describe how its inputs are made.

    Raises:
      FileNotFoundError: there is nothing at the path.
      HubError: the hub does not give the repository, or not now.
      WeightsMismatch: the weights are not those of the model that the files describe, or the model
        has no counterpart.
      WeightFileError: a file is damaged or is not what its name says.
    """
    if name := parse_name(path):
        with explained(pathlib.Path(str(name))):
            path = fetch_repository(name, FOLDERS)
    path = pathlib.Path(locate(path)).expanduser()
    if not path.exists():
        bare = (
            ""
            if "/" in str(path) or path.suffix
            else f"; a repository of a hub is {PREFIX}OWNER/NAME"
        )
        raise FileNotFoundError(f"{path}: there is no such file or folder{bare}")
    with explained(path):
        names = list_names(path)
        for module in READ:
            if module.recognize(path, names):
                return dataclasses.replace(module.read(path), path=str(path))
    raise UserError(
        f"{path} is not a workdir, a folder with a config.json of transformers, timm or big_align, "
        f"an open_clip_config.json, or a file of weights with the names of timm, open_clip, "
        f"efficientnet_pytorch, UniCL or MoBY"
    )


def save(
    path: str | os.PathLike, pretrained: Pretrained, format: str = "transformers", card: str = ""
) -> None:
    """Writes a folder that another library opens unchanged, or nothing if it cannot.

    Args:
      path: a folder that does not exist or is empty.
      pretrained: what to write: a model that `big_align.load` returns, or a
        `big_align.Pretrained` made from a model's config node and variables.
      format: "transformers", "open_clip", "timm", "big_align", "jax_export" or
        "sentence_transformers". "big_align" and "jax_export" hold any model, and the last one what
        embeds texts; the others take the tower of an image encoder, without its projection.
      card: text of README.md in the folder, which no format reads; "" for no such file.

    Raises:
      WeightsMismatch: the format has no such model; the message says what does not fit.
      UserError: the format is unknown or has no such preprocessing, or the folder holds something,
        or the model is none.
    """
    if not isinstance(pretrained, Pretrained):
        kind = type(pretrained).__name__
        raise UserError(f"save(path, model): the model is a {kind}; the path comes first")
    check_known("format", format, FORMATS)
    if pretrained.classifier and format in OTHERS:
        told = "%s: the classifier of %d classes is left out; format='big_align' keeps it"
        logging.warning(told, path, len(pretrained.classifier.names))
    try:
        files = _make_files(pretrained, format)
    except WeightsMismatch as error:
        if format not in OTHERS:
            raise
        raise WeightsMismatch(f"{error}\n--format=big_align keeps every model") from error
    write_folder(path, files | ({CARD: card} if card else {}))


def _make_files(pretrained: Pretrained, format: str) -> dict[str, Any]:
    """Makes the files of a format, and those that are arrays without making the arrays."""
    if format not in OTHERS:
        return FORMATS[format].write(pretrained)
    if pretrained.kind == "dual" and not pretrained.node["text"]:
        pretrained = pretrained.tower("image")
    if isinstance(pretrained.image_size, tuple):
        height, width = pretrained.image_size
        raise WeightsMismatch(
            f"format = {format!r} is for square images, the model's are {height} x {width}"
        )
    seen = pretrained.preprocessing
    if seen and seen.operations:
        raise UserError(
            f"format = {format!r} cannot hold the image operations {seen.operations!r}, only "
            "'resize_small(R)|central_crop(S)' and 'resize(R)|central_crop(S)'; format = "
            "'big_align' can, and big_align.load(..., transform=...) replaces them"
        )
    return FORMATS[format].write(pretrained.with_position_tables())


def list_formats(pretrained: Pretrained) -> dict[str, str]:
    """Tells for each format whether `save` can write a model.

    It is cheap: arrays need only have shapes, as `runs.workdir.outline_model` makes them.

    Returns:
      By the name of the format, "" or the reason why not, in one line.
    """
    found, logger = {}, logging.get_absl_logger()
    logger.addFilter(_drop)  # what `save` would say about each
    try:
        for format in FORMATS:
            try:
                _make_files(pretrained, MADE_OF.get(format, format))
            except UserError as error:
                found[format] = put_in_a_line(str(error))
            else:
                found[format] = ""
    finally:
        logger.removeFilter(_drop)
    return found


def _drop(record: Any) -> bool:
    return False


def tell_formats(pretrained: Pretrained) -> str:
    """Returns a line that tells to which formats a model goes as a whole, and its towers alone.

    Why it goes to no others, `list_formats` says, and `save` when it is asked to.
    """
    whole = list_formats(pretrained)
    others = [name for name in whole if name not in TEXTS_ALONE]
    goes = {
        "the whole model": [name for name in others if not whole[name]],
        "its texts": [name for name in TEXTS_ALONE if not whole[name]],
    }
    for part in filter(pretrained.embeds, TOWERS):
        alone = list_formats(pretrained.tower(part))
        goes[f"its {part} tower"] = [n for n in others if whole[n] and not alone[n]]
    told = [f"{what} to {', '.join(names)}" for what, names in goes.items() if names]
    return f"exports: {'; '.join(told) or 'none'}"
