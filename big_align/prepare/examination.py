"""Examines each example: its size, pixels and texts, or why it cannot be used."""

import dataclasses
import hashlib
import io
import pathlib
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from PIL import Image

from big_align.config.components.signatures import import_attribute
from big_align.core.digests import fingerprint
from big_align.core.errors import UserError, put_in_a_line
from big_align.data import boundary, examples
from big_align.data.images import decoding
from big_align.data.images.decoding import MAX_PIXELS, to_rgb
from big_align.data.loading.broken import tell_reason
from big_align.prepare.inputs import FileRows, Inputs, Stretch
from big_align.prepare.text_rules import normalize_text

IMAGE_ID_BYTES = 16
ENDINGS = {"JPEG": "jpg", "MPO": "jpg", "PNG": "png", "WEBP": "webp", "GIF": "gif", "BMP": "bmp",
           "TIFF": "tif"}  # fmt: skip
EMPTIED = "nothing is left of the text without markup and control characters"
TEXT_MAX = 2**20  # characters; anything longer is a file in the wrong place

Classifier = Callable[[np.ndarray], str | None]
"""Takes pixels uint8 [h w 3]; returns why an image is dropped, or None."""
Languages = Callable[[str], str | None]
"""Takes a text; returns its language, or None."""


@dataclasses.dataclass(frozen=True)
class Examination:
    """How examples are examined."""

    normalize: bool = True  # whether texts are normalized
    max_pixels: int = MAX_PIXELS  # an encoded image with more cannot be used
    classifier: str = ""  # "module:function" of a `Classifier`
    languages: str = ""  # "module:function" of `Languages`

    @property
    def sources(self) -> dict[str, str]:
        """Digests of the files of these functions: what other versions judged is not used again."""
        digests = {}
        for kind, name in (("classifier", self.classifier), ("languages", self.languages)):
            if name:
                _load(name, f"--{kind}")
                path = getattr(sys.modules[name.partition(":")[0]], "__file__", None)
                digests[kind] = fingerprint(pathlib.Path(path).read_bytes(), 16) if path else ""
        return digests

    def load(self) -> tuple[Classifier | None, Languages | None]:
        """Imports the functions; raises UserError if one does not exist."""
        return _load(self.classifier, "--classifier"), _load(self.languages, "--languages")


def _load(name: str, flag: str) -> Callable[..., Any] | None:
    if not name:
        return None
    if ":" not in name:
        raise UserError(f"{flag}={name} does not read as module:function")
    found = import_attribute(name, flag)
    if not callable(found):
        raise UserError(f"{flag}={name} is no function")
    return found


def identify_image(image: Any, max_pixels: int = MAX_PIXELS) -> tuple[bytes, np.ndarray]:
    """Decodes an image; returns what identifies it, and its pixels, uint8 [h w 3].

    Sixteen bytes are the same for images with the same pixels, after EXIF orientation and with
    transparency on white. What cannot be decoded is a BrokenExample.
    """
    if isinstance(image, bytes):
        decoding.raise_pillow_limit(max_pixels)
        picture = decoding.open_picture(image, max_pixels)
        pixels = np.asarray(to_rgb(picture))
    else:
        pixels = np.ascontiguousarray(image, np.uint8)
        if pixels.ndim != 3 or pixels.shape[2] != 3:
            raise examples.BrokenExample(f"the image has the shape {pixels.shape}, not [h w 3]")
    digest = hashlib.blake2b(f"{pixels.shape}".encode(), digest_size=IMAGE_ID_BYTES)
    digest.update(np.ascontiguousarray(pixels))
    return digest.digest(), pixels


def encode_member(image: Any) -> tuple[bytes, str]:
    """Returns the file of an image, PNG if shards do not hold its format, and its ending."""
    if isinstance(image, bytes):
        with Image.open(io.BytesIO(image), formats=decoding.FORMATS) as picture:
            if ending := ENDINGS.get(picture.format or ""):
                return image, ending
            image = np.asarray(to_rgb(picture))
    file = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(image, np.uint8)).save(file, "PNG")
    return file.getvalue(), "png"


def examine_example(
    example: examples.Example,
    settings: Examination,
    classifier: Classifier | None = None,
    languages: Languages | None = None,
) -> dict[str, Any]:
    """Returns what the rules need to know about an example, as JSON holds it.

    Texts that normalization empties, such as markup around nothing, are left out and counted. An
    image that cannot be decoded, a text that is too long to be one, or a function that returns
    something else than a text is a BrokenExample.
    """
    longest = max(map(len, example.captions), default=0)
    if longest > TEXT_MAX:
        raise examples.BrokenExample(f"a text has {longest} characters; at most {TEXT_MAX} count")
    identity, pixels = identify_image(example.image, settings.max_pixels)
    captions = example.captions
    texts = [normalize_text(text) for text in captions] if settings.normalize else captions
    told = [examples.language_of(c) for c, text in zip(captions, texts, strict=True) if text]
    emptied = texts.count("")
    texts = [text for text in texts if text]
    size = len(example.image) if isinstance(example.image, bytes) else pixels.nbytes
    return {
        "id": identity.hex(),
        "width": pixels.shape[1],
        "height": pixels.shape[0],
        "bytes": size,
        "texts": texts,
        "emptied": emptied,
        "labels": list(example.labels),
        "flag": _ask(classifier, pixels, "--classifier") if classifier else "",
        "languages": [_ask(languages, text, "--languages") for text in texts]
        if languages
        else told * any(told),
    }


def _ask(function: Callable[..., str | None], given: Any, flag: str) -> str:
    """Returns what a function of the user says, in a line; "" if that is nothing."""
    said = function(given)
    if not isinstance(said, str | None):
        told = put_in_a_line(repr(said))
        raise examples.BrokenExample(f"the function of {flag} returns {told}, which is no text")
    return put_in_a_line(said or "")


def examine_stretch(
    inputs: Inputs, stretch: Stretch, settings: Examination
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Returns what was found about each intact example of a stretch, with its row; and faults.

    Each example or text that cannot be used has a reason. Every text is in one of the two, or its
    example is.
    """
    source = inputs.open(stretch.file)
    classifier, languages = settings.load()
    facts, broken = [], []
    for row, shard, index in FileRows(source).locate(stretch):
        reasons = []
        try:
            example = boundary.read_example(source, shard, index)
            with boundary.ONE_EXAMPLE:
                found = examine_example(example, settings, classifier, languages)
            reasons = [EMPTIED] * found.pop("emptied")
            if found["texts"] or not reasons:
                facts.append({"row": row, **found})
        except examples.BrokenExample as error:
            reasons.append(tell_reason(error))
        for reason in reasons:
            name = put_in_a_line(source.name(shard, index))
            where = {"input": inputs.paths[stretch.file], "row": row, "name": name}
            broken.append(where | {"count": 1, "reason": reason})
    return facts, broken
