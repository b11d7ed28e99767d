"""Where the pixels of an image come from: what a transform draws, as numbers for a graph."""

import math
from typing import NamedTuple

from big_align.data.images import image_ops
from big_align.data.images.pixel_ops import Rng
from big_align.errors import UserError

OPERATIONS = (
    "resize",
    "resize_small",
    "central_crop",
    "random_crop",
    "random_resized_crop",
    "flip_horizontal",
)
"""Operations that only move the frame through which a picture is seen."""

RADIUS = {"bilinear": 1, "bicubic": 2, "lanczos": 3}
"""The radius of each filter, in pixels of the coarser of source and result."""

METHODS = tuple(RADIUS)
COPY = len(METHODS)
RATIOS = (1, 2, 4, 8)  # at which a JPEG can be decoded
MARGIN = 2  # pixels beyond the reach of the filter, so that the edge of the window is not seen


class Frame(NamedTuple):
    """The pixels to decode, and how to resample them.

    Attributes:
      window: top, left, height, width of what is decoded, in pixels after `RATIOS`; then the
        number of the ratio, whether left and right are exchanged, and the number of the method,
        which is `COPY` if the window is the result.
      placement: how many pixels of the result there are per pixel of the window, down and across,
        and the pixel of the result at which the window begins.
    """

    window: tuple[int, int, int, int, int, bool, int]
    placement: tuple[float, float, float, float]


class FrameTransform:
    """The operations of `image_ops` on the frame of a picture whose pixels are not decoded yet.

    Args:
      transform: image operations separated by `|`.

    Raises:
      UserError: an operation changes pixels, or resamples in a way that the graph cannot.
    """

    def __init__(self, transform: str):
        self._steps = image_ops.Transform(transform).steps
        for operation, arguments in self._steps:
            name, method = operation.__name__, arguments.get("method", "bicubic")
            if image_ops.OPERATIONS.get(name) is not operation or name not in OPERATIONS:
                raise UserError(
                    f"the operation {name!r} in transform {transform!r} is not one of a tf.data "
                    f"pipeline, which has {', '.join(OPERATIONS)}; leave it out or train with the "
                    "loader (config.data.pipeline = None)"
                )
            if method not in METHODS:
                raise UserError(
                    f"{name} with method={method!r} in transform {transform!r} is not in a tf.data "
                    f"pipeline, which has {', '.join(METHODS)}"
                )

    def __call__(self, width: int, height: int, rng: Rng) -> tuple[Frame, tuple[int, int]]:
        """Draws a frame; the draws are the same as in `image_ops.Transform`.

        Args:
          width: the width of the picture in pixels.
          height: the height of the picture in pixels.
          rng: the random numbers of the position.

        Returns:
          The frame, and the height and the width of the result.
        """
        whole = (0.0, 0.0, float(width), float(height))
        view = image_ops.View(None, whole, width, height)
        for operation, arguments in self._steps:
            view = operation(view, rng, **arguments)
        return _make_frame(view, width, height), (view.height, view.width)


def _make_frame(view: image_ops.View, width: int, height: int) -> Frame:
    x0, y0, x1, y1 = view.box
    number = _choose_ratio(view, width, height)
    if number:
        ratio = RATIOS[number]
        decoded = -(-width // ratio), -(-height // ratio)
        x_scale, y_scale = decoded[0] / width, decoded[1] / height
        x0, x1, y0, y1 = x0 * x_scale, x1 * x_scale, y0 * y_scale, y1 * y_scale
        width, height = decoded
    if (x1 - x0, y1 - y0) == (view.width, view.height) and x0.is_integer() and y0.is_integer():
        window = int(y0), int(x0), view.height, view.width, number, view.mirrored, COPY
        return Frame(window, (1.0, 1.0, 0.0, 0.0))
    radius = RADIUS[view.method]
    top, rows, y_scale, y_start = _place(y0, y1, height, view.height, radius)
    left, columns, x_scale, x_start = _place(x0, x1, width, view.width, radius)
    method = METHODS.index(view.method)
    window = top, left, rows, columns, number, view.mirrored, method
    return Frame(window, (y_scale, x_scale, y_start, x_start))


def _choose_ratio(view: image_ops.View, width: int, height: int) -> int:
    """Returns the number of the ratio at which Pillow would decode a JPEG for this view."""
    x0, y0, x1, y1 = view.box
    ratio = min((x1 - x0) / view.width, (y1 - y0) / view.height)
    if ratio < 4:
        return 0
    scale = min(width // int(width / ratio * 2), height // int(height / ratio * 2))
    return max(number for number, each in enumerate(RATIOS) if each <= max(scale, 1))


def _place(
    start: float, end: float, size: int, wanted: int, radius: int
) -> tuple[int, int, float, float]:
    """Returns the start and size of what to decode along an axis, and its scale and offset."""
    scale = wanted / (end - start)
    reach = radius * max(1.0, 1.0 / scale) + MARGIN
    first = max(0, math.floor(start - reach))
    last = min(size, math.ceil(end + reach))
    return first, last - first, scale, (first - start) * scale
