"""Decoding of images, and small operations on them that a config composes by name.

A transform is a text such as `resize(346)|random_crop(289)|flip_horizontal`. Most operations only
move the frame through which the picture is seen; only the pixels that are kept are decoded and
resampled, once, at the end. Before an operation on pixels, such as `color_jitter`, they are decoded
and resampled; the operations after it see its result as a picture of its own.
"""

import ast
import functools
import inspect
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from big_align.data import boundary, examples
from big_align.data.images import decoding, pixel_ops, rand_augment
from big_align.data.images.decoding import MAX_PIXELS
from big_align.data.images.pixel_ops import Rng

METHODS = {
    name: Image.Resampling[name.upper()] for name in ("nearest", "bilinear", "bicubic", "lanczos")
}
CHOICES = {"method": METHODS, "recipe": rand_augment.RECIPES}  # of arguments that are names
LARGEST = {"probability": 1, "hue": 0.5, "magnitude": rand_augment.MAGNITUDE_MAX}  # of arguments


class View(NamedTuple):
    """A picture seen through a frame: a box of the source, resampled to a size."""

    image: Any  # its pixels may not be decoded yet
    box: tuple[float, float, float, float]  # left, top, right, bottom in pixels of `image`
    width: int  # of the result, as is the height
    height: int
    mirrored: bool = False  # left and right are exchanged
    method: str = "bicubic"

    def crop(self, left: int, top: int, width: int, height: int) -> "View":
        """Keeps a rectangle, given in pixels of the result."""
        if self.mirrored:
            left = self.width - left - width
        x0, y0, x1, y1 = self.box
        x_scale, y_scale = (x1 - x0) / self.width, (y1 - y0) / self.height
        box = (
            x0 + left * x_scale,
            y0 + top * y_scale,
            x0 + (left + width) * x_scale,
            y0 + (top + height) * y_scale,
        )
        return self._replace(box=box, width=width, height=height)

    def render(self) -> UInt8[np.ndarray, "h w 3"]:
        """Returns the pixels; raises BrokenExample like `render_picture`."""
        return np.asarray(self.render_picture())

    def render_picture(self) -> Image.Image:
        """Decodes to RGB and resamples, making all pixels of a chain; raises BrokenExample."""
        size = (self.width, self.height)
        decoding.check_enlarged(self.image.size, size)
        image, box = _load(self.image, self.box, self.width, self.height)
        if size != image.size or box != (0, 0, *size):
            image = image.resize(size, METHODS[self.method], box=box)
        if self.mirrored:  # NumPy would copy a reversed view pixel by pixel
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return image


def open_view(image: bytes | UInt8[np.ndarray, "h w 3"], max_pixels: int = MAX_PIXELS) -> View:
    """Returns a view of all of an encoded image (see `decoding.open_picture`) or of pixels."""
    if isinstance(image, np.ndarray):
        return _show_all(Image.fromarray(image))
    return _show_all(decoding.open_picture(image, max_pixels))


def _show_all(picture: Image.Image) -> View:
    width, height = picture.size
    return View(picture, (0.0, 0.0, float(width), float(height)), width, height)


def _load(
    image: Image.Image, box: tuple[float, float, float, float], width: int, height: int
) -> tuple[Image.Image, tuple[float, float, float, float]]:
    """Decodes to RGB; a JPEG much larger than the result is decoded at a half, quarter or eighth.

    At least two decoded pixels remain for each of the result, so the filter decides the quality.
    """
    full = image.size
    ratio = min((box[2] - box[0]) / width, (box[3] - box[1]) / height)
    try:
        if ratio >= 4:
            image.draft(None, (int(full[0] / ratio * 2), int(full[1] / ratio * 2)))
        image = decoding.to_rgb(image)
        image.load()
    except Exception as error:
        raise examples.BrokenExample(f"the image cannot be decoded ({error})") from error
    if image.size != full:
        x_scale, y_scale = image.width / full[0], image.height / full[1]
        box = (box[0] * x_scale, box[1] * y_scale, box[2] * x_scale, box[3] * y_scale)
    return image, box


OPERATIONS: dict[str, Callable[..., View]] = {}


def register(operation: Callable[..., View]) -> Callable[..., View]:
    """Registers a function of a view, a random generator and literal arguments by its name."""
    OPERATIONS[operation.__name__] = operation
    return operation


class OnPixels:
    """An operation on views, made from one on RGB pictures, which pickling stores by its name."""

    def __init__(self, operation: Callable[..., Image.Image]):
        functools.update_wrapper(self, operation)

    def __call__(self, view: View, rng: Rng, **arguments: Any) -> View:
        return _show_all(self.__wrapped__(view.render_picture(), rng, **arguments))


for _operation in (
    pixel_ops.color_jitter,
    pixel_ops.grayscale,
    pixel_ops.gaussian_blur,
    pixel_ops.random_erasing,
    rand_augment.rand_augment,
):
    register(OnPixels(_operation))


@register
def resize(
    view: View, rng: Rng, height: int, width: int | None = None, method: str = "bicubic"
) -> View:
    """Resizes to a square, or to a height and a width, without keeping the aspect ratio."""
    return view._replace(height=height, width=width or height, method=method)


@register
def resize_small(view: View, rng: Rng, size: int, method: str = "bicubic") -> View:
    """Resizes the shorter side to `size` and the longer one in proportion, rounded down.

    torchvision and transformers round it down too, so models see the pixels they have learned from.
    """
    short = min(view.height, view.width)
    height, width = (side * size // short for side in (view.height, view.width))
    return view._replace(height=height, width=width, method=method)


@register
def central_crop(
    view: View, rng: Rng, height: int, width: int | None = None, half_to_even: bool = False
) -> View:
    """Keeps the middle.

    An odd margin is larger at the right and at the bottom, as in transformers; or half of it is
    rounded to an even number, as in torchvision.
    """
    margins = _margins(view, height, width or height, "central_crop")
    left, top = (round(m / 2) if half_to_even else m // 2 for m in margins)
    return view.crop(left, top, width or height, height)


@register
def random_crop(view: View, rng: Rng, height: int, width: int | None = None) -> View:
    """Keeps a rectangle at a place drawn uniformly."""
    left, top = _margins(view, height, width or height, "random_crop")
    return view.crop(_draw(rng, left), _draw(rng, top), width or height, height)


@register
def random_resized_crop(
    view: View,
    rng: Rng,
    size: int,
    scale_min: float = 0.08,
    scale_max: float = 1.0,
    ratio_min: float = 3 / 4,
    ratio_max: float = 4 / 3,
    method: str = "bicubic",
    tries: int = 10,
) -> View:
    """Keeps a rectangle of random area (a fraction of the image) and aspect ratio, made square.

    A rectangle that does not fit in the image is drawn again, as in the published recipes; the last
    of `tries` is cut to the image.
    """
    for _ in range(tries):
        area = (scale_min + (scale_max - scale_min) * rng.random()) * view.width * view.height
        ratio = ratio_min * (ratio_max / ratio_min) ** rng.random()
        width = max(1, round(math.sqrt(area * ratio)))
        height = max(1, round(math.sqrt(area / ratio)))
        if width <= view.width and height <= view.height:
            break
    width, height = min(width, view.width), min(height, view.height)
    left, top = _draw(rng, view.width - width), _draw(rng, view.height - height)
    view = view.crop(left, top, width, height)
    return view._replace(height=size, width=size, method=method)


@register
def flip_horizontal(view: View, rng: Rng, probability: float = 0.5) -> View:
    """Exchanges left and right with a probability."""
    if rng.random() >= probability:
        return view
    return view._replace(mirrored=not view.mirrored)


def _draw(rng: Rng, largest: int) -> int:
    return int(rng.random() * (largest + 1))


def _margins(view: View, height: int, width: int, name: str) -> tuple[int, int]:
    if height > view.height or width > view.width:
        raise examples.BrokenExample(
            f"{name}({height}, {width}) is larger than the image, which is {view.height} high and "
            f"{view.width} wide there; put a resize before it"
        )
    return view.width - width, view.height - height


class Transform:
    """A chain of operations from an encoded image, or pixels, to pixels.

    Args:
      transform: operations separated by `|`, with literal arguments; empty only decodes.
      max_pixels: an encoded image with more is broken.

    Raises:
      ValueError: an operation is unknown or an argument is wrong; the message says what is legal.
    """

    def __init__(self, transform: str, max_pixels: int = MAX_PIXELS):
        decoding.raise_pillow_limit(max_pixels)
        self._max_pixels = max_pixels
        self.steps = [_bind(node, transform) for node in _split_chain(transform)]

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        decoding.raise_pillow_limit(self._max_pixels)  # the limit is per process

    def __call__(
        self, image: bytes | UInt8[np.ndarray, "_ _ 3"], rng: Rng
    ) -> UInt8[np.ndarray, "h w 3"]:
        """Applies the chain; raises BrokenExample if it fails on the image with any error."""
        with boundary.ONE_EXAMPLE:
            view = open_view(image, self._max_pixels)
            for operation, arguments in self.steps:
                view = operation(view, rng, **arguments)
            return view.render()


def explain_sizes(first: tuple[int, ...], other: tuple[int, ...]) -> str:
    """Says what to do if the results of two images differ in size."""
    return (
        f"the transform makes images of {first} and {other}; end it with a resize or a crop so "
        "that all have one size"
    )


def _split_chain(text: str) -> list[ast.expr]:
    if not text.strip():
        return []
    try:
        node = ast.parse(text.strip(), mode="eval").body
    except SyntaxError as error:
        raise ValueError(f"transform {text!r} does not read as op(arguments)|op ...") from error
    chain = []
    while isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        chain.insert(0, node.right)
        node = node.left
    return [node, *chain]


def _bind(node: ast.expr, text: str) -> tuple[Callable[..., View], dict[str, Any]]:
    """Finds an operation and checks its arguments against its signature."""
    call = node if isinstance(node, ast.Call) else ast.Call(node, [], [])
    name = call.func.id if isinstance(call.func, ast.Name) else ast.unparse(node)
    if name not in OPERATIONS:
        raise ValueError(
            f"unknown operation {name!r} in transform {text!r}; known: {', '.join(OPERATIONS)}"
        )
    signature = inspect.signature(OPERATIONS[name])
    own = list(signature.parameters.values())[2:]
    try:
        arguments = [ast.literal_eval(argument) for argument in call.args]
        named = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}
        bound = signature.replace(parameters=own).bind(*arguments, **named).arguments
        for parameter in own:
            if parameter.name in bound:
                bound[parameter.name] = _check(parameter, bound[parameter.name])
    except (TypeError, ValueError) as error:
        usage = ", ".join(str(parameter) for parameter in own)
        raise ValueError(
            f"{ast.unparse(node)} in transform {text!r}: {error}; usage: {name}({usage})"
        ) from error
    return OPERATIONS[name], bound


def _check(parameter: inspect.Parameter, value: Any) -> Any:
    """Returns the value in the type of its parameter; raises ValueError if it does not fit."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if parameter.annotation is str:
        if value not in CHOICES[parameter.name]:
            raise ValueError(
                f"{parameter.name} {value!r} is none of {', '.join(CHOICES[parameter.name])}"
            )
    elif parameter.annotation is bool:
        if not isinstance(value, bool):
            raise ValueError(f"{parameter.name}={value!r} is neither True nor False")
    elif parameter.annotation is float:
        largest = LARGEST.get(parameter.name, math.inf)
        if not number or not 0 <= value <= largest:
            legal = "of at least 0" if largest == math.inf else f"from 0 to {largest}"
            raise ValueError(f"{parameter.name}={value!r} is not a number {legal}")
        return float(value)
    elif not number or not isinstance(value, int) or value < 1:
        raise ValueError(f"{parameter.name}={value!r} is not a whole number of at least 1")
    return value
