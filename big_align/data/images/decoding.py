"""Opens image files with a limit on their pixels, and converts them to RGB."""

import io
import math
import warnings

import numpy as np
from jaxtyping import Num, UInt8
from PIL import Image, ImageOps, UnidentifiedImageError

from big_align.data import examples

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM")
ORIENTATION = 0x0112  # the EXIF tag
MAX_PIXELS = 100_000_000
MOST_ENLARGED = 4096 * 4096
"""No image is enlarged to more pixels: `resize_small(224)` makes 400 million of 1 x 8000."""


def open_picture(data: bytes, max_pixels: int = MAX_PIXELS) -> Image.Image:
    """Opens an encoded image; orientation in EXIF or XMP is applied. Raises BrokenExample.

    Only the header is read, so a truncated file fails only when its pixels are read. An image with
    more than `max_pixels` is refused before any are decoded: 20 kilobytes can hold hundreds of
    millions.
    """
    try:
        picture = Image.open(io.BytesIO(data), formats=FORMATS)
        width, height = picture.size
        if width * height <= max_pixels:
            if _names_orientation(picture) and picture.getexif().get(ORIENTATION, 1) != 1:
                picture = ImageOps.exif_transpose(picture)  # as the author of the caption saw it
            return picture
    except UnidentifiedImageError as error:  # it names a buffer in memory
        known = f"none of the formats that are read: {', '.join(FORMATS)}"
        raise examples.BrokenExample(f"the image cannot be opened ({known})") from error
    except Exception as error:  # Pillow's decoders raise all kinds of errors
        raise examples.BrokenExample(f"the image cannot be opened ({error})") from error
    raise examples.BrokenExample(
        f"the image has {width} x {height} pixels, which is more than max_pixels={max_pixels}"
    )


def check_enlarged(size: tuple[int, int], wanted: tuple[int, int]) -> None:
    """Raises a BrokenExample if a transform makes too many pixels of (width, height), and more."""
    if math.prod(wanted) > max(math.prod(size), MOST_ENLARGED):
        before, after = (f"{width} x {height}" for width, height in (size, wanted))
        raise examples.BrokenExample(
            f"the transform enlarges the image from {before} to {after} pixels, which is more than "
            f"{MOST_ENLARGED}: crop it first"
        )


def _names_orientation(picture: Image.Image) -> bool:
    """Returns whether metadata may say how a picture is turned; `getexif` may decode it all."""
    xmp = picture.info.get("XML:com.adobe.xmp") or picture.info.get("xmp") or ""
    name = "tiff:Orientation" if isinstance(xmp, str) else b"tiff:Orientation"
    return "exif" in picture.info or name in xmp


def raise_pillow_limit(max_pixels: int) -> None:
    """Lets Pillow open images of up to `max_pixels`; by default it refuses 179 million pixels.

    Its warning above 89 million is silenced, since `open_picture` has a limit of its own.
    """
    warnings.simplefilter("ignore", Image.DecompressionBombWarning)
    if Image.MAX_IMAGE_PIXELS is not None and Image.MAX_IMAGE_PIXELS < max_pixels:
        Image.MAX_IMAGE_PIXELS = max_pixels


def to_rgb(image: Image.Image) -> Image.Image:
    """Converts any mode to RGB; puts alpha on white, and scales gray of any depth to 8 bits."""
    if image.mode == "RGB" and "transparency" not in image.info:
        return image
    if image.mode[0] in "IF":
        image = Image.fromarray(scale_gray(np.asarray(image)))
    elif image.has_transparency_data:
        image = image.convert("RGBA")
        white = Image.new("RGB", image.size, "white")
        white.paste(image, mask=image.getchannel("A"))
        return white
    return image.convert("RGB")


def scale_gray(gray: Num[np.ndarray, "h w"]) -> UInt8[np.ndarray, "h w"]:
    """Scales gray values to 8 bits, in the same way for all images of a kind.

    Integers up to 65535 count as 16 bits, as PNG defines them, and keep their high byte; those of
    32 bits count as 8 if none is above 255, as in an image that was converted from 8 bits. Other
    files do not say what white is: for floats it is the smallest of 1, 255 and 65535 that holds
    them, and an image with other values, such as negative ones, is stretched from its least value,
    or 0, to its largest.
    """
    least, largest = float(gray.min(initial=0)), float(gray.max(initial=0))
    if not np.isfinite(least) or not np.isfinite(largest):
        raise examples.BrokenExample("the image has values that are NaN or infinite")
    if gray.dtype.kind != "f" and 0 <= least and largest < 2**16:
        narrow = gray.dtype.itemsize > 2 and largest < 2**8
        return (gray if narrow else gray >> 8).astype(np.uint8)
    if gray.dtype.kind == "f":
        top = next((top for top in (1, 255, 65535) if 0 <= least and largest <= top), None)
        if top:
            return np.rint(gray * 255 / top).astype(np.uint8)
    gray = gray.astype(np.float64) - least
    return np.rint(gray * 255 / (largest - least)).astype(np.uint8)
