"""Pictures of clusters as labels (MLCD, An et al. 2024, Fig. 2, 3, 6 and 7), without a display."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int, Num, UInt8
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from big_align.core.errors import UserError
from big_align.evaluators.exhibits.clusters import Place
from big_align.models.dual_encoder import normalize_image
from big_align.weights.formats.preprocessing import Preprocessing
from big_align.weights.formats.pretrained import Pretrained

Pixels = Callable[[Place], UInt8[np.ndarray, "h w 3"]]
BINS = 200


def draw_labels(
    chosen: Mapping[Place, Sequence[int]],
    examples: Mapping[int, Sequence[Place]],
    pixels: Pixels,
    count: int,
) -> Figure:
    """Draws images, each followed by a row of other images for each of its labels (Fig. 2, 7).

    The labels to show are given for each image, and images for each label, of which there are
    `count` in a row.
    """
    heights = [max(len(labels), 1) for labels in chosen.values()]
    width = max(heights) + count
    figure = Figure(figsize=(1.2 * width, 1.35 * sum(heights)), layout="constrained")
    parts = np.atleast_1d(figure.subfigures(len(chosen), 1, height_ratios=heights))
    for part, (image, labels) in zip(parts, chosen.items(), strict=True):
        rows = max(len(labels), 1)
        grid = part.add_gridspec(rows, 1 + count, width_ratios=(max(heights), *[1] * count))
        _show(part.add_subplot(grid[:, 0]), pixels(image))
        for row, label in enumerate(labels):
            others = [place for place in examples[label] if place != image][:count]
            axes = [part.add_subplot(grid[row, 1 + column]) for column in range(count)]
            axes[0].set_title(f"cluster {label}", fontsize=8, loc="left")
            for axis in axes[len(others) :]:
                axis.set_axis_off()
            for axis, place in zip(axes, others, strict=False):
                _show(axis, pixels(place))
    return figure


@dataclasses.dataclass(frozen=True)
class Cosines:
    """How cosines of images with their labels, and with drawn centers of others, are spread."""

    positive: Int[np.ndarray, " bins"]  # counts in `BINS` equal steps from -1 to 1
    negative: Int[np.ndarray, " bins"]
    positive_mean: float
    negative_mean: float


def measure_cosines(
    batches: Iterable[tuple[np.ndarray, np.ndarray]],
    centers: Num[np.ndarray, "k d"],
    negatives: int = 1024,
    seed: int = 0,
) -> Cosines:
    """Measures cosines of images with their labels and with other centers (Fig. 3).

    Batches have embeddings [n d] of any length, and their labels int [n p], -1 for none; an image
    without labels is left out. Centers have any length; `negatives` of them are drawn once for all
    images.
    """
    drawn = np.random.default_rng(seed).choice(
        len(centers), min(negatives, len(centers)), replace=False
    )
    others = _unit(centers[drawn])
    counts, sums = np.zeros((2, BINS), int), np.zeros(2)
    for embeddings, clusters in batches:
        _check_fit(embeddings, clusters, centers)
        some = (clusters >= 0).any(1)
        zimg, clusters = _unit(embeddings[some]), clusters[some]
        positive = np.einsum("nd,nld->nl", zimg, _unit(centers[clusters]))[clusters >= 0]
        label_of = np.zeros((len(zimg), len(drawn)), bool)
        for labels in clusters.T:
            label_of |= labels[:, None] == drawn
        for side, values in enumerate((positive, (zimg @ others.T)[~label_of])):
            inside = np.clip(values, -1, 1)  # rounding may exceed the range
            counts[side] += np.histogram(inside, BINS, (-1, 1))[0]
            sums[side] += inside.sum(dtype=np.float64)
    means = sums / np.maximum(counts.sum(1), 1)
    return Cosines(*counts, *means.tolist())


def _check_fit(embeddings: np.ndarray, clusters: np.ndarray, centers: np.ndarray) -> None:
    if embeddings.shape[1] != centers.shape[1]:
        raise UserError(
            f"embeddings have {embeddings.shape[1]} numbers and centers {centers.shape[1]}: they "
            "are of different models"
        )
    if clusters.max(initial=-1) >= len(centers):
        raise UserError(
            f"an image has the label {clusters.max()}, but there are {len(centers)} centers: they "
            "are of different clusterings"
        )


def draw_cosines(measured: Mapping[str, Cosines]) -> Figure:
    """Draws histograms and, if there are at least three, a curve of their means, in order.

    Titles are, for example, steps of training.
    """
    panels = 2 if len(measured) < 3 else 4
    figure = Figure(figsize=(4 * panels, 3.2), layout="constrained")
    axes = figure.subplots(1, panels)
    middles = (np.arange(BINS) + 0.5) * 2 / BINS - 1
    for axis, side in zip(axes, ("positive", "negative"), strict=False):
        for title, cosines in measured.items():
            counts = getattr(cosines, side)
            density = counts / max(counts.sum(), 1) * BINS / 2
            axis.plot(middles, density, label=title, drawstyle="steps-mid")
        axis.set(title=f"{side} cosines", xlabel="cosine", ylabel="density")
        axis.legend(fontsize=7)
    for axis, side in zip(axes[2:], ("positive_mean", "negative_mean"), strict=False):
        axis.plot(list(measured), [getattr(x, side) for x in measured.values()], marker=".")
        axis.set(title=f"mean of {side.split('_')[0]} cosines")
        axis.tick_params(axis="x", labelrotation=45)
    for axis in axes:
        axis.grid(alpha=0.3)
    return figure


def patch_features(
    pretrained: Pretrained, image: UInt8[np.ndarray, "b h w 3"]
) -> Float[np.ndarray, "b y x c"]:
    """Returns the features of an image tower at every position of its grid, in evaluation mode.

    Images are square, and prepared as the model says.
    """
    seen, tower = find_preprocessing(pretrained), pretrained.tower("image")
    pixels = normalize_image(jnp.asarray(image), seen.mean, seen.std)
    _, tokens = jax.jit(tower.model.apply)(tower.variables, pixels)
    side = round(tokens.shape[1] ** 0.5)
    return np.asarray(tokens, np.float32).reshape(len(image), side, side, -1)


def find_preprocessing(pretrained: Pretrained) -> Preprocessing:
    """Returns how images are prepared for a model, which has to say it."""
    if pretrained.preprocessing is None:
        raise UserError(
            "the model does not say how its images are preprocessed: its folder should hold the "
            "settings of image processing, as workdirs and the folders of big_align do"
        )
    return pretrained.preprocessing


def find_components(features: Float[np.ndarray, "b y x c"]) -> Float[np.ndarray, "b y x 3"]:
    """Returns the first three principal components of patches, over all the given images together.

    The sign of a component is arbitrary. Here the mean of the first is larger inside the images
    than at their edges, and the largest weight of each of the others is positive.
    """
    rows = features.reshape(-1, features.shape[-1]).astype(np.float64)
    rows -= rows.mean(0)
    axes = np.linalg.eigh(rows.T @ rows)[1][:, :-4:-1]
    largest = np.take_along_axis(axes, np.abs(axes).argmax(0)[None], 0)
    components = (rows @ (axes * np.where(largest < 0, -1, 1))).reshape(*features.shape[:3], 3)
    first = components[..., 0]
    inside = first[:, 1:-1, 1:-1]
    # The mean over everything is zero: if it is positive inside, it is larger there.
    if inside.size and inside.mean() < -1e-9 * np.abs(first).max():
        components[..., 0] *= -1
    return components


def color_components(
    components: Float[np.ndarray, "b y x 3"], shown: Bool[np.ndarray, "b y x"] | None = None
) -> UInt8[np.ndarray, "b y x 3"]:
    """Maps each component to red, green or blue from 0 to 255; one without spread is gray.

    Positions that are not shown become black.
    """
    shown = np.ones(components.shape[:3], bool) if shown is None else shown
    colors = np.zeros(components.shape, np.uint8)
    if not shown.any():
        return colors
    values = components[shown]
    low, span = values.min(0), np.ptp(values, 0)
    flat = span <= 1e-6 * np.ptp(components, (0, 1, 2)).max()
    fraction = np.where(flat, 0.5, (values - low) / np.where(flat, 1, span))
    colors[shown] = np.round(255 * fraction)
    return colors


def draw_patches(
    images: UInt8[np.ndarray, "b h w 3"], features: Float[np.ndarray, "b y x c"]
) -> Figure:
    """Draws images and the principal components of their patches as colors (Fig. 6).

    Below each image: its own components where the first is positive, which separates the object
    from the background; and those of all images together, where equal colors mean equal features.
    """
    own = [find_components(one[None]) for one in features]
    objects = [color_components(one, one[..., 0] > 0)[0] for one in own]
    rows = {
        "image": images,
        "of each image, foreground": objects,
        "of all images": color_components(find_components(features)),
    }
    size = 2.0 * len(images), 2.1 * len(rows)
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(len(rows), len(images), squeeze=False)
    for line, (title, pictures) in zip(axes, rows.items(), strict=True):
        line[0].set_title(title, fontsize=9, loc="left")
        for axis, picture in zip(line, pictures, strict=True):
            _show(axis, picture)
    return figure


def _unit(x: Num[np.ndarray, "*n d"]) -> Float[np.ndarray, "*n d"]:
    x = np.asarray(x, np.float32)
    return x / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), 1e-12)


def _show(axis: Axes, picture: UInt8[np.ndarray, "h w 3"]) -> None:
    axis.imshow(picture, interpolation="nearest")
    axis.set(xticks=[], yticks=[])
