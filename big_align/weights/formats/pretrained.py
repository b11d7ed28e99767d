"""A model with its weights, and everything else that is needed to use it."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import numpy as np
from jaxtyping import Float

from big_align.core.errors import ConfigError, UserError, WeightsMismatch, put_in_a_line
from big_align.models.dual_encoder import IMAGENET_MEAN, IMAGENET_STD, TOWERS
from big_align.weights.arrays.weight_files import WeightFile
from big_align.weights.formats import architecture
from big_align.weights.formats.architecture import Node, Size
from big_align.weights.formats.preprocessing import Preprocessing
from big_align.weights.tables import mapping
from big_align.weights.tables.mapping import Rule

UNUSED = (
    *("pooler.", "classifier", "num_batches_tracked", "position_ids", "relative_position_index"),
    *("attn_mask", "cls.", "lm_head.", "head.", "fc.", "logit_scale", "logit_bias"),
    "temperature",
)
"""Parts of names of arrays that no tower of ours has: heads, counters, computed tables."""

COMPUTED = ("position_ids", "relative_position_index", "attn_mask")
"""Those of them that need not be kept, since any library computes them on loading."""

SCALES = {
    "temperature": (1e-4, 1e4, "what cosines are divided by"),
    "logit_scale": (-9.0, 9.0, "the logarithm of what cosines are multiplied by"),
    "logit_bias": (-1e4, 1e4, "what is added to logits"),
}
"""For scalars beside the towers: the least and the largest that are read, and what each is."""


@dataclasses.dataclass(frozen=True, eq=False)
class Classifier:
    """A layer from what an image tower pools to the classes that a run has learned.

    Attributes:
      names: of the classes.
      kernel: from features to classes.
      bias: added to the products; None if features are scaled to unit length first, and there is
        none.
    """

    names: tuple[str, ...]
    kernel: Float[np.ndarray, "f c"] = dataclasses.field(repr=False)
    bias: Float[np.ndarray, " c"] | None = dataclasses.field(default=None, repr=False)

    def __post_init__(self) -> None:
        count, bias = len(self.names), self.bias
        fits = self.kernel.ndim == 2 and self.kernel.shape[1] == count
        if not fits or (bias is not None and bias.shape != (count,)):
            raise WeightsMismatch(
                f"a classifier of {count} classes has a kernel {list(self.kernel.shape)}"
                + ("" if bias is None else f" and a bias {list(bias.shape)}")
            )

    def compute_logits(self, features: Float[np.ndarray, "n f"]) -> Float[np.ndarray, "n c"]:
        """Returns a logit for each class; a softmax makes probabilities of them."""
        features = np.asarray(features, np.float64)
        if self.bias is not None:
            return features @ self.kernel + self.bias
        return features / np.linalg.norm(features, axis=1, keepdims=True) @ self.kernel


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Pretrained:
    """A dual encoder, or one tower, with its weights.

    A dual encoder may lack the text tower: then it is an image tower with a projection. What
    `big_align.load` returns is one, too, and `big_align.save` writes it.

    Attributes:
      node: the model, as `config.model` has it, or one of its towers as `config.model.image` or
        `config.model.text` has it.
      variables: parameters and statistics, as `model.apply` takes them.
      image_size: pixels of an edge of its images, or height and width if these differ; None for a
        text tower.
      preprocessing: how images are prepared, if known.
      tokenizer: as in `config.tokenizer`, if known.
      temperature: what cosines are divided by; None for a tower.
      bias: what is added to them then, for a decision about each pair by itself (SigLIP); None for
        models that compare texts with each other.
      source: the format that it was read from, None if it was not.
      kept: arrays of the file for which the model has no place, by their names there; they are
        written back to the same format.
      checkpoint: the checkpoint of a run that it was read from; None if it was not.
      path: the folder or file of weights that it was read from; None if it was not.
      classifier: the layer to classes that a run has trained on the image tower, if it has.
      templates: texts with {} in place of the name of a class, by which a run was evaluated.
      trained_templates: those in which a run has trained its class texts; before those of a class
        list, since it may know no others.

    Raises:
      WeightsMismatch: the temperature is not a number above 0, or the bias none that is finite.

    Examples:
      >>> import big_align
      >>> config = big_align.load_config("quickstart").to_dict()
      >>> node, tokenizer = config["model"], config["tokenizer"]
      >>> model = big_align.Pretrained(node, {}, image_size=16, tokenizer=tokenizer)
      >>> model
      <Pretrained: vit and bert, embeddings of 64; images of 16 x 16 px; tokenizer words>
      >>> model.kind, model.tower("text").description
      ('dual', 'bert')
    """

    node: Node
    variables: Mapping[str, Any] = dataclasses.field(repr=False)
    image_size: Size = None
    preprocessing: Preprocessing | None = None
    tokenizer: Mapping[str, Any] | None = None
    temperature: float | None = None
    bias: float | None = None
    source: str | None = None
    kept: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict, repr=False)
    checkpoint: str | None = None
    path: str | None = None
    classifier: Classifier | None = None
    templates: tuple[str, ...] | None = None
    trained_templates: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        for name, least in (("temperature", 0.0), ("bias", -math.inf)):
            value = getattr(self, name)
            if value is not None and not least < _as_number(value) < math.inf:
                told = "a number above 0" if name == "temperature" else "a finite number"
                shown = put_in_a_line(repr(value))[:50]
                raise WeightsMismatch(f"the {name} of the model is {shown}; it must be {told}")

    def __repr__(self) -> str:
        """Tells in two lines what it is, and where it is from; its arrays would fill pages."""
        size = self.image_size if isinstance(self.image_size, int) else None
        edges = f"{size} x {size}" if size else " x ".join(map(str, self.image_size or ()))
        made = [
            f"{self.description}, embeddings of {self.embedding_dim}",
            f"images of {edges} px" if edges else "",
            f"tokenizer {self.tokenizer.get('name')}" if self.tokenizer else "",
            f"a classifier of {len(self.classifier.names)} classes" if self.classifier else "",
        ]
        place = self.checkpoint or self.path
        told = "; ".join(filter(None, made))
        return f"<{type(self).__name__}: {told}" + (f"\n from {place}>" if place else ">")

    @property
    def embedding_dim(self) -> int:
        """The size of its embeddings; of one tower, that of what it pools."""
        model = self.model
        dim = getattr(model, "embedding_dim", None)
        return dim or getattr(model, "image", model).output_dim

    @property
    def kind(self) -> str:
        """What it is: "dual", "image" or "text"."""
        return architecture.kind_of(self.node)

    def kept_for(self, format: str) -> dict[str, np.ndarray]:
        """Returns the arrays in `kept` for a format; none if the model came from another."""
        return dict(self.kept) if self.source == format else {}

    @property
    def description(self) -> str:
        """The names of its towers."""
        if self.kind != "dual":
            return self.node["name"]
        towers = (self.node[part] for part in ("image", "text"))
        return " and ".join(tower["name"] for tower in towers if tower)

    @property
    def model(self) -> nn.Module:
        """The flax module; a dual encoder has `encode_image` and `encode_text`."""
        return architecture.make_model(self.node)

    def embeds(self, part: str) -> bool:
        """Returns whether the model has a tower for an "image" or a "text"."""
        there = self.kind == part or self.kind == "dual" and self.node[part]
        return bool(there) and (self.kind != "dual" or part in self.variables["params"])

    def tower(self, part: str) -> "Pretrained":
        """Returns one tower by itself, with everything that belongs to it.

        What it pools is its embedding then: a linear layer into the common space of images and
        texts belongs to the dual encoder, and is left behind.

        Args:
          part: "image" or "text".

        Raises:
          UserError: it is a tower for the other kind of inputs.
        """
        if part not in TOWERS:
            raise UserError(f"part = {part!r} is neither 'image' nor 'text'")
        if part == self.kind:
            return self
        if self.kind != "dual" or not self.node[part]:
            known = self.kind if self.kind != "dual" else "image"
            raise UserError(f"the model is a tower for {known}s, it has none for {part}s")
        image = part == "image"
        return Pretrained(
            self.node[part],
            {name: arrays[part] for name, arrays in self.variables.items() if part in arrays},
            self.image_size if image else None,
            preprocessing=self.preprocessing if image else None,
            tokenizer=None if image else self.tokenizer,
            checkpoint=self.checkpoint,
            path=self.path,
            classifier=self.classifier if image else None,
        )

    def with_transform(self, transform: str) -> "Pretrained":
        """Returns the model with other image operations, and its own colors.

        Args:
          transform: the operations as in a config, such as "resize_small(224)|central_crop(224)".

        Raises:
          UserError: the operations cannot be used; the message says why.
        """
        seen = self.preprocessing
        mean = seen.mean if seen else self.node.get("image_mean", IMAGENET_MEAN)
        std = seen.std if seen else self.node.get("image_std", IMAGENET_STD)
        try:
            made = Preprocessing.from_transform(transform, mean, std)
        except ConfigError:
            raise
        except ValueError as error:
            raise UserError(f"transform: {error}") from error
        return dataclasses.replace(self, preprocessing=made)

    def with_position_tables(self) -> "Pretrained":
        """Returns the same model with tables of the positions that its image tower computes."""
        dual = self.kind == "dual"
        tower = self.model.image if dual else self.model
        if not hasattr(tower, "list_positions") or not (
            found := tower.list_positions(self.image_size)
        ):
            return self
        fields, tables = found
        params = dict(self.variables["params"])
        node = {**self.node, **({"image": {**self.node["image"], **fields}} if dual else fields)}
        params.update({"image": {**params["image"], **tables}} if dual else tables)
        return dataclasses.replace(self, node=node, variables={**self.variables, "params": params})

    @property
    def flat(self) -> dict[str, np.ndarray]:
        """Arrays by path, on the host."""
        return {k: np.asarray(v) for k, v in architecture.flatten(self.variables).items()}

    def entries(self, table: Sequence[Rule]) -> list[mapping.Entry]:
        """Finds the counterparts of all arrays in the table of a format, such as timm's."""
        paths = architecture.flatten(self.variables)
        return mapping.correspond(table, paths, architecture.depths_of(self.node))


def _as_number(value: Any) -> float:
    """Returns a number of any library, or NaN for what is none."""
    try:
        return math.nan if isinstance(value, str | bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def read_scalar(weights: WeightFile, name: str, missing: float | None = None) -> float | None:
    """Reads a number beside the towers, one of `SCALES`; `missing` if there is none.

    One out of its range was stored as something else: exp(-x) of a scale that is no logarithm is 0.
    """
    if name not in weights:
        return missing
    array, (least, most, meaning) = weights[name], SCALES[name]
    value = float(array.reshape(-1)[0]) if array.size == 1 else math.nan
    if least <= value <= most:
        return value
    found = f"{value:.6g}" if array.size == 1 else f"an array {list(array.shape)}"
    advice = f", and log({found}) is {math.log(value):.6g}" if 0 < value < math.inf else ""
    raise WeightsMismatch(
        f"{weights.path}: {name} is {found}; as {meaning} it must be from {least:g} to {most:g}"
        f"{advice * (name == 'logit_scale')}"
    )


def read_temperature(weights: WeightFile, name: str = "logit_scale") -> float:
    """Reads what cosines are divided by, 1 if there is no array of the name.

    It is stored as "temperature", or as "logit_scale", whose exponential is its inverse.
    """
    if name == "temperature":
        return read_scalar(weights, name, 1.0)
    return math.exp(-read_scalar(weights, name, 0.0))


def assemble(
    node: Node,
    table: Sequence[Rule] | None,
    weights: WeightFile,
    *,
    image_size: Size,
    where: str,
    unused: Sequence[str] = UNUSED,
    **more: Any,
) -> Pretrained:
    """Makes a model from the arrays of a file; those that are left over are kept.

    Without a table they have our names. `unused` are parts of the names of those that may be left
    over, and `more` are other attributes of the result.
    """
    architecture.check_sizes(node, image_size, weights.arrays, where)
    shapes = architecture.expected_shapes(node, image_size)
    entries = [mapping.Entry((name,), name, "same") for name in shapes]
    if table is not None:
        entries = mapping.correspond(table, shapes, architecture.depths_of(node))
    flat = architecture.take(entries, weights, shapes, where, unused)
    left = set(weights) - {entry.theirs for entry in entries}
    aside = sorted(name for name in left if not any(part in name for part in COMPUTED))
    kept = {name: np.asarray(weights[name]) for name in aside}
    return Pretrained(node, architecture.unflatten(flat), image_size, kept=kept, **more)


def make_zeros(variables: Mapping[str, Any]) -> dict[str, Any]:
    """Makes zeros that take no memory, of the shapes and types of arrays or of what has them."""
    return jax.tree.map(lambda x: np.broadcast_to(np.zeros((), x.dtype), x.shape), variables)
