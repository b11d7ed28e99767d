"""What objectives are composed of: an encoder, possibly a temperature, and a loss of their own."""

import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jax.sharding import Mesh
from jaxtyping import Array, Int, PRNGKeyArray

from big_align.core.errors import ConfigError
from big_align.core.types import Batch, Embeddings, Features, ModelState, Outputs, Params
from big_align.data.precomputed.shard_files import read_index
from big_align.models.dual_encoder import DualEncoder
from big_align.models.parts import layers
from big_align.objectives.parts.encoders import FEATURES, Encoder
from big_align.objectives.parts.temperature import Divisor, LogScale

EMBEDDINGS = ("zimg", "ztxt")


class ComposedObjective:
    """All methods of `types.Objective` except the loss, from an encoder and a temperature.

    The parameters are a dictionary: `model` holds those of the dual encoder, the temperature has
    its own entry, and objectives add theirs. Arguments that many objectives take mean the same in
    all, and are described here: --help shows what a component's docstring or that of a base says
    about a field. A value that is out of range is a ValueError.

    Args:
      encoder: encodes a batch.
      mesh: the devices over which the loss is computed.
      temperature: temperature of the cosines; None if there is none.
      model: the dual encoder.
      min_temperature: lower bound of exp(-tau), by projection after each update.
      num_classes: length of the list that labels are indices into.
      keep_logits_bytes: logits of a device are kept for the backward pass if they fit in this.
    """

    initial: tuple[str, ...] = ("temperature",)
    """The fields that only a start reads: initial values of what is learned."""
    takes_views = False
    table_sizes: Mapping[str, int] = types.MappingProxyType({})

    def __init__(self, encoder: Encoder, mesh: Mesh, temperature: Divisor | LogScale | None = None):
        self.encoder = encoder
        self.mesh = mesh
        self.temperature = temperature

    @property
    def model(self) -> DualEncoder:
        """The dual encoder."""
        return self.encoder.model

    @property
    def frozen(self) -> tuple[str, ...]:
        """Paths of parameters that the optimizer must leave unchanged."""
        return self.encoder.frozen

    def init(self, rng: PRNGKeyArray, batch: Batch) -> tuple[Params, ModelState]:
        """Makes the parameters of the encoder and the temperature."""
        params, model_state = self.encoder.init(rng, batch)
        own = {} if self.temperature is None else self.temperature.init()
        return params | own, model_state

    def scale(self, params: Params) -> Any:
        """Returns the factor of the cosines, a scalar; None if there is no temperature."""
        return None if self.temperature is None else self.temperature.scale(params)

    def check_precomputed(self, folders: Mapping[str, str], where: str) -> None:
        """Checks that features replace locked towers only, and are features of a tower.

        Args:
          folders: the folders of precomputed fields, by field.
          where: the place of the data in the config, for error messages.
        """
        encoder = self.encoder
        for field, part in FEATURES.items():
            if not (path := folders.get(field)):
                continue
            place = f"{where}.precomputed.{field} = {path!r}"
            if field not in encoder.takes_features:
                raise ConfigError(f"{place}, but the objective takes none: leave it out")
            if part not in encoder.model.locked:
                raise ConfigError(
                    f"{place} stands for the {part} tower, which is trained: write "
                    f"--config.model.locked=\"('{part}',)\", or leave it out"
                )
            made_by = read_index(Path(path), ("dim", "made_by"))["made_by"]
            if made_by.get("what", "features") != "features":
                raise ConfigError(
                    f"{place} holds the {made_by['what']} of each example, not the features of "
                    f"its {part} tower: give python -m big_align.tools.embed --what=features"
                )

    def describe_fields(self) -> Mapping[str, tuple[int, ...]]:
        """Requires no fields that only precomputed folders provide."""
        return {}

    def augment(self, batch: Batch, rng: PRNGKeyArray, step: Int[Array, ""]) -> Batch:
        """Returns the batch unchanged."""
        return batch

    def init_tables(self, rng: PRNGKeyArray) -> Mapping[str, Array]:
        """Returns no tables."""
        return {}

    def draw(self, tables: Mapping[str, Any], batch: Batch, rng: PRNGKeyArray) -> dict[str, Any]:
        """Draws nothing, since there are no tables."""
        return {}

    def prepare(self, params: Params, batch: Batch, rng: PRNGKeyArray) -> Any:
        """Returns None: examples share nothing."""
        return None

    def encode(
        self, params: Params, model_state: ModelState, batch: Batch, rng: PRNGKeyArray
    ) -> tuple[Outputs, ModelState]:
        """Encodes a (micro-)batch, with embeddings in the type that losses get; see the encoder."""
        outputs, model_state = self.encoder.encode(params, model_state, batch, rng)
        dtype = layers.compute_dtype(self.model.loss_dtype)
        given = {name: outputs[name].astype(dtype) for name in EMBEDDINGS if name in outputs}
        return {**outputs, **given}, model_state

    def project(self, params: Params) -> Params:
        """Keeps the temperature within its bound."""
        return params if self.temperature is None else self.temperature.project(params)

    def image_features(self, params: Params, model_state: ModelState, batch: Batch) -> Features:
        """Returns the pooled features of the image tower, in evaluation mode."""
        return self.encoder.image_features(params, model_state, batch)

    def text_features(self, params: Params, model_state: ModelState, batch: Batch) -> Features:
        """Returns the pooled features of the text tower, in evaluation mode."""
        return self.encoder.text_features(params, model_state, batch)

    def embed_image(self, params: Params, model_state: ModelState, batch: Batch) -> Embeddings:
        """Returns unit-length image embeddings, in evaluation mode."""
        return self.encoder.embed_image(params, model_state, batch)

    def embed_text(self, params: Params, model_state: ModelState, batch: Batch) -> Embeddings:
        """Returns unit-length text embeddings, in evaluation mode."""
        return self.encoder.embed_text(params, model_state, batch)
