"""ML-Decoder (Ridnik et al., 2021): logits of many labels from spatial tokens with few queries."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from big_align.core.errors import check_at_least
from big_align.models.parts import attention, layer_weights, layers
from big_align.models.parts.narrow import LayerNorm


class CrossAttention(nn.Module):
    """Multi-head attention of queries to tokens, with dropout on the weights."""

    heads: int
    dtype: str
    dropout: float = 0.0

    @nn.compact
    def __call__(
        self, queries: Float[Array, "b g c"], tokens: Float[Array, "b t c"], train: bool = False
    ) -> Float[Array, "b g c"]:
        """Returns the weighted mean of the values for every query; `train` turns dropout on."""
        width = queries.shape[-1]

        def project(name: str, x: Float[Array, "b l c"]):
            y = layers.Dense(width, ("embed", "heads"), dtype=self.dtype, name=name)(x)
            return y.reshape(*x.shape[:-1], self.heads, -1)

        key, value = project("key", tokens), project("value", tokens)
        dropout = attention.make_dropout(self, self.dropout, train)
        y = attention.attend(project("query", queries), key, value, None, dropout=dropout)
        y = y.reshape(queries.shape)
        return layers.Dense(width, ("heads", "embed"), dtype=self.dtype, name="out")(y)


class MLDecoder(nn.Module):
    """A recognition head: one layer of a transformer decoder without self-attention.

    Each of a few queries scores a group of classes, so the cost hardly grows with the number of
    classes. The queries may keep their initial values, since a learned projection follows (§3.3).
    Then they are a parameter without a gradient, `queries`, so that checkpoints and weight files
    contain them; exclude it from weight decay.

    Args:
      classes: number of logits.
      groups: number of queries, each for ceil(classes / groups) classes; at most one per class.
      width: width of the queries and of the tokens they attend to.
      learned_queries: whether to train the queries instead of keeping them fixed.
      dropout: rate on each residual branch, on the weights of attention, and in the perceptron, as
        the authors have it.
      initial_bias: initial bias of every logit.
    """

    classes: int
    groups: int = 100
    width: int = 768
    heads: int = 8
    mlp_dim: int = 2048
    learned_queries: bool = False
    dropout: float = 0.1
    layer_norm_eps: float = 1e-5
    initial_bias: float = 0.0
    dtype: str = "float32"

    @nn.compact
    def __call__(
        self, tokens: Float[Array, "b t d"], train: bool = False
    ) -> Float[Array, "b classes"]:
        """Returns the logits of the classes, float32, from spatial features of an image tower.

        Raises:
          ValueError: the width is not a multiple of the number of heads, or `groups` < 1.
        """
        if self.width % self.heads:
            raise ValueError(f"width={self.width} is not a multiple of heads={self.heads}")
        check_at_least(1, groups=self.groups)

        def norm(name: str):
            return LayerNorm(self.layer_norm_eps, self.dtype, name=name)

        def drop(x):
            return nn.Dropout(self.dropout, deterministic=not train)(x)

        axes = "channels_in", "embed"
        tokens = nn.relu(layers.Dense(self.width, axes, dtype=self.dtype, name="embed")(tokens))
        queries = self._queries(len(tokens))
        # The authors keep the residual sum of the self-attention that they left out; since it is
        # normalized next, it only matters for dropout.
        x = norm("query_norm")(queries + drop(queries))
        attend = CrossAttention(self.heads, self.dtype, self.dropout, name="attention")
        x = norm("attention_norm")(x + drop(attend(x, tokens, train)))
        mlp = layers.MlpBlock(self.mlp_dim, "relu", self.dtype, self.dropout, name="mlp")
        x = norm("mlp_norm")(x + drop(mlp(x, train)))
        return self._pool(x)

    def _queries(self, batch: int) -> Float[Array, "b g c"]:
        shape = min(self.groups, self.classes), self.width
        init = nn.with_logical_partitioning(nn.initializers.normal(1.0), (None, "embed"))
        queries = self.param("queries", init, shape)
        if not self.learned_queries:
            queries = jax.lax.stop_gradient(queries)
        queries = jnp.broadcast_to(queries, (batch, *shape))
        return queries.astype(layers.compute_dtype(self.dtype))

    def _pool(self, x: Float[Array, "b g c"]) -> Float[Array, "b classes"]:
        """Maps the output of each query to the logits of its group, with weights of its own."""
        groups, width = x.shape[1:]
        shape = groups, width, -(-self.classes // groups)
        xavier = nn.initializers.xavier_normal(in_axis=1, out_axis=0)  # as the authors count fans
        axes = (None, "embed", None)
        init = nn.with_logical_partitioning(xavier, axes)
        kernel = self.param("group_kernel", init, shape)
        init = nn.initializers.constant(self.initial_bias)
        bias = self.param("group_bias", init, (self.classes,))
        # einsum("bgc,gcd->bgd") takes the kernel first, which XLA's CPUs refuse in bfloat16.
        multiply = functools.partial(jnp.matmul, preferred_element_type=jnp.float32)
        multiply = jax.vmap(multiply, in_axes=(1, 0), out_axes=1)
        logits = layer_weights.apply_weight(multiply, x, kernel, axes, x.dtype)
        # If the groups do not divide the classes, the last entries belong to no class.
        return logits.reshape(len(x), -1)[:, : self.classes] + bias
