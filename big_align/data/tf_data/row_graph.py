"""Rows of batches in TensorFlow's own operations: decoded, cropped, resampled, flipped."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from big_align.data import tensorflow_on_cpu
from big_align.data.tf_data.frames import METHODS, RATIOS
from big_align.data.tf_data.row_plans import RowPlanner

KERNELS = {"bilinear": "triangle", "bicubic": "keyscubic", "lanczos": "lanczos3"}
"""What TensorFlow calls the filters."""

CHUNK = 32  # rows per call of Python
GROUP = 8  # rows of one attempt to decode: enough for the attempt to cost little

Tensors = Mapping[str, Any]


def make_rows(planner: RowPlanner, first: int, num_threads: int) -> Any:
    """Makes the endless `tf.data.Dataset` of single rows.

    Args:
      planner: Python's part.
      first: the number of the first row.
      num_threads: groups of rows that are made at a time.

    Returns:
      A data set of `image`, `texts` [k], `count`, `label` and the extra fields, in their order.
    """
    tf = tensorflow_on_cpu.load()
    plain = tf.autograph.experimental.do_not_convert
    plan, make = _call_plan(planner), _call_make(planner)
    own, shape = ("planned", "data", "window", "placement", "number"), planner.row["image"][0]

    def decode(row: Tensors) -> Tensors:
        image = _decode_views(row["data"], row["window"], row["placement"], shape)
        return {"image": image, **{name: row[name] for name in row if name not in own}}

    @plain
    def decode_or_make(row: Tensors) -> Tensors:
        return tf.cond(row["planned"], lambda: decode(row), lambda: make(row["number"]))

    @plain
    def attempt(group: Tensors) -> Any:
        # A broken image ends the graph that decodes it. So the rows are tried in a data set of
        # their own, which the error leaves empty; then the rows that Python makes come first.
        rows = tf.data.Dataset.from_tensor_slices(group)
        tried = rows.map(decode_or_make).batch(GROUP).ignore_errors()
        made = rows.map(plain(lambda row: make(row["number"]))).batch(GROUP)
        return tried.concatenate(made).take(1)

    numbers = tf.data.Dataset.range(first, np.iinfo(np.int64).max)
    chunks = numbers.batch(CHUNK, drop_remainder=True)
    plans = chunks.map(plan, num_parallel_calls=num_threads, deterministic=True)
    groups = plans.rebatch(GROUP).interleave(
        attempt, cycle_length=2 * num_threads, num_parallel_calls=num_threads, deterministic=True
    )
    return groups.unbatch()


def _field_types(planner: RowPlanner) -> dict[str, tuple[tuple[int, ...], Any]]:
    """Returns the shape and the type of the fields of a row other than its image."""
    tf = tensorflow_on_cpu.load()
    fields = {"texts": ((planner.texts,), tf.string), "count": ((), tf.int32)}
    taken = ("image", "text", "text_mask")
    more = {k: (s, tf.as_dtype(d)) for k, (s, d) in planner.row.items() if k not in taken}
    return fields | more


def _call_plan(planner: RowPlanner) -> Any:
    """Returns `planner.plan` as a graph function, from numbers to plans."""
    tf = tensorflow_on_cpu.load()
    views = planner.row["image"][0][0] if len(planner.row["image"][0]) == 4 else 1
    types = _field_types(planner) | {
        "planned": ((), tf.bool),
        "data": ((), tf.string),
        "window": ((views, 7), tf.int32),
        "placement": ((views, 4), tf.float32),
    }
    return _make_call(planner, planner.plan, types, (CHUNK,))


def _call_make(planner: RowPlanner) -> Any:
    """Returns `planner.make` as a graph function, from a number to a row."""
    tf = tensorflow_on_cpu.load()
    types = {"image": (planner.row["image"][0], tf.uint8), **_field_types(planner)}
    return _make_call(planner, lambda number: planner.make(int(number)), types, ())


def _make_call(planner: RowPlanner, function: Any, types: Mapping[str, Any], batch: tuple) -> Any:
    tf = tensorflow_on_cpu.load()

    @planner.keep_errors
    def run(numbers: Any) -> list[Any]:
        made = function(numbers)
        return [made[name] for name in types]

    @tf.autograph.experimental.do_not_convert
    def call(numbers: Any) -> Tensors:
        found = tf.numpy_function(run, [numbers], [kind for _, kind in types.values()])
        made = {
            name: tf.ensure_shape(each, (*batch, *shape))
            for each, (name, (shape, _)) in zip(found, types.items(), strict=True)
        }
        return made | ({"number": numbers} if batch else {})

    return call


def _decode_views(data: Any, windows: Any, placements: Any, shape: tuple[int, ...]) -> Any:
    """Decodes an image for each of its views; uint8 of the shape of a row's image."""
    tf = tensorflow_on_cpu.load()
    *views, height, width, _ = shape
    made = [
        _decode(data, windows[number], placements[number], height, width)
        for number in range(*views or (1,))
    ]
    return tf.stack(made) if views else made[0]


def _decode(data: Any, window: Any, placement: Any, height: int, width: int) -> Any:
    tf = tensorflow_on_cpu.load()

    def crop(ratio: int) -> Any:
        return lambda: tf.image.decode_and_crop_jpeg(
            data, window[:4], channels=3, ratio=ratio, dct_method="INTEGER_ACCURATE"
        )

    def resample(method: str) -> Any:
        def run() -> Any:
            (made,) = tf.unstack(
                tf.raw_ops.ScaleAndTranslate(
                    images=pixels[None],
                    size=(height, width),
                    scale=placement[:2],
                    translation=placement[2:],
                    kernel_type=KERNELS[method],
                    antialias=True,
                )
            )
            return tf.cast(tf.clip_by_value(tf.round(made), 0.0, 255.0), tf.uint8)

        return run

    pixels = tf.switch_case(window[4], [crop(ratio) for ratio in RATIOS])
    copy = lambda: tf.ensure_shape(pixels, (height, width, 3))  # noqa: E731
    image = tf.switch_case(window[6], [*(resample(method) for method in METHODS), copy])
    return tf.cond(window[5] > 0, lambda: image[:, ::-1], lambda: image)
