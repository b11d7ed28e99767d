"""A source: squares of ten colors, drawn when they are read."""

import colorsys

import numpy as np

from big_align.data.examples import Example

COLORS = ("red", "orange", "yellow", "lime", "green", "cyan", "blue", "violet", "pink", "crimson")


class Squares:
    """Squares on gray, with their colors as captions and labels.

    Args:
      count: number of examples.
      size: height and width of an image.
    """

    def __init__(self, count: int = 1000, size: int = 32):
        self.shard_sizes, self.broken = np.array([count]), np.array([0])
        self.class_names, self.size = COLORS, size

    def read(self, shard: int, index: int) -> Example:
        """Draws a square somewhere; `index` alone decides where."""
        image = np.full((self.size, self.size, 3), 128, np.uint8)
        x, y = np.random.default_rng(index).integers(0, self.size // 2, 2)
        color = colorsys.hsv_to_rgb(index % len(COLORS) / len(COLORS), 1.0, 1.0)
        image[y : y + self.size // 2, x : x + self.size // 2] = np.multiply(color, 255)
        return Example(self.key(shard, index), image, *self.read_text(shard, index))

    def read_text(self, shard: int, index: int) -> tuple[list[str], tuple[int, ...]]:
        """Returns the captions and the labels, without the image."""
        label = index % len(COLORS)
        return [f"a {COLORS[label]} square"], (label,)

    def key(self, shard: int, index: int) -> str:
        """Returns the name of an example in its shard; it decides what is held out."""
        return f"{index:06d}"

    def name(self, shard: int, index: int) -> str:
        """Names an example for messages."""
        return f"{self.shard_name(shard)}: {self.key(shard, index)}"

    def shard_name(self, shard: int) -> str:
        """Names a shard for messages."""
        return "squares"
