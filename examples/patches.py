"""An image tower: a layer on each patch, a layer on all of them, and their mean."""

import flax.linen as nn
from jaxtyping import Array, Float


class Patches(nn.Module):
    """Two layers on patches; a text tower is called with `text`, `text_mask` and `train`.

    Args:
      patch: height and width of a patch in pixels.
      width: number of features.
    """

    patch: int = 2
    width: int = 64

    @property
    def output_dim(self) -> int:
        """Width of the pooled features."""
        return self.width

    @nn.compact
    def __call__(
        self, image: Float[Array, "b h w 3"], train: bool = False
    ) -> tuple[Float[Array, "b f"], Float[Array, "b t f"]]:
        """Returns the pooled features, and those of every patch."""
        sides = (self.patch, self.patch)
        tokens = nn.Conv(self.width, sides, sides, padding="VALID")(image)
        tokens = nn.gelu(tokens.reshape(len(image), -1, self.width))
        mixed = nn.Dense(tokens.shape[1])(tokens.swapaxes(1, 2)).swapaxes(1, 2)
        tokens = nn.LayerNorm()(tokens + mixed)
        return tokens.mean(axis=1), tokens
