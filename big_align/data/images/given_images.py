"""Images as a caller has them: paths, URLs, encoded bytes, PIL images and arrays of uint8."""

import os
import threading
from typing import Any

import numpy as np
from jaxtyping import UInt8
from PIL import Image, ImageOps

from big_align.core.errors import UserError, put_in_a_line
from big_align.data import boundary, examples, files
from big_align.data.images import decoding

LISTS = "OUST"  # kinds of arrays of objects and of texts, which are read as lists
KINDS = "a path, a URL, encoded bytes, an open file, a PIL image or a uint8 array [h w 3]"
ENCODED = bytes | bytearray | memoryview

_DECODING = threading.Lock()  # two threads must not decode the same Pillow image


def is_image(value: Any) -> bool:
    """Returns whether a value is one image, and not several."""
    if isinstance(value, str | os.PathLike | ENCODED | Image.Image) or hasattr(value, "read"):
        return True
    if not hasattr(value, "__array__"):
        return False
    array = np.asarray(value)
    return array.ndim < 4 and (array.dtype.kind not in LISTS or not array.ndim)


def check_images(given: Any) -> list[Any]:
    """Lists the given images, one or several, for `read_image`, and checks what they are.

    Nothing is read yet. An array [n h w 3] is n images. A UserError says what would be right.
    """
    if is_image(given):
        given = [given]
    elif not hasattr(given, "__iter__") or isinstance(given, dict):
        raise UserError(f"images is a {type(given).__name__}; give a list, each {KINDS}")
    checked = [_check_image(image, number) for number, image in enumerate(given)]
    if not checked:
        raise UserError("images is empty; give at least one image")
    return checked


def _check_image(image: Any, number: int) -> Any:
    if isinstance(image, Image.Image):
        return image
    if isinstance(image, ENCODED):
        return bytes(image)
    if hasattr(image, "read"):
        return _check_image(image.read(), number)
    if isinstance(image, str | os.PathLike):
        return os.fspath(image)
    if not hasattr(image, "__array__"):
        raise UserError(f"image {number} is a {type(image).__name__}; it must be {KINDS}")
    array = np.asarray(image)
    if array.dtype.kind in LISTS:
        shape = f"an array {list(array.shape)} of {array.dtype}"
        raise UserError(f"image {number} is {shape}; it must be {KINDS}")
    if array.dtype != np.uint8:
        top = "np.uint8(np.rint(x * 255)) if its values go from 0 to 1"
        advice = f", such as {top}" if array.dtype.kind == "f" else ""
        raise UserError(
            f"image {number} is an array of {array.dtype}, whose range is not clear; "
            f"give uint8 from 0 to 255{advice}"
        )
    if array.ndim != 3 or array.shape[2] != 3 or not array.size:
        raise UserError(
            f"image {number} is an array {list(array.shape)}; it must be [h w 3], red, green and "
            "blue; PIL.Image.fromarray(x) can be given for gray and for alpha"
        )
    return array


def name_image(image: Any, number: int) -> str:
    """Names an image of a list in a message: by its path, or else by its position."""
    return put_in_a_line(image) if isinstance(image, str) else f"image {number}"


def read_image(image: Any) -> bytes | UInt8[np.ndarray, "h w 3"]:
    """Reads an image that `check_images` returned, for `image_ops.Transform`; raises BrokenExample.

    Pixels of a PIL image are taken as they are, turned upright by its EXIF orientation.
    """
    with boundary.ONE_EXAMPLE:
        if isinstance(image, str):
            return _read_file(image)
        if not isinstance(image, Image.Image):
            return image
        with _DECODING:
            image.load()
        return np.asarray(decoding.to_rgb(ImageOps.exif_transpose(image)))


def _read_file(path: str) -> bytes:
    try:
        return files.files_of(path).read_all(path)
    except FileNotFoundError as error:
        pattern = any(letter in path for letter in "*?[")
        hint = "; glob.glob lists the files of a pattern" if pattern else ""
        raise examples.BrokenExample(f"there is no such file{hint}") from error
