"""Layers that several towers share: dense layers, stochastic depth, perceptrons."""

from collections.abc import Callable, Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.layout import Layout, with_layout_constraint
from jaxtyping import Array, Float

from big_align.core.errors import check_known
from big_align.models.parts import layer_weights
from big_align.models.parts.narrow import ACTIVATIONS, keep_input
from big_align.parallel.devices import traced
from big_align.parallel.devices.rematerialization import keep_result

truncated_normal = nn.initializers.truncated_normal(0.02)
"""Initializes the kernels and embeddings of transformers (BERT, ViT)."""


def choose(field: str, name: str, table: dict):
    """Returns the entry of a table; a ValueError names the field of a name that is not in it."""
    check_known(field, name, table)
    return table[name]


def compute_dtype(name: str) -> jnp.dtype:
    """Returns the type in which a tower computes, by its name; its parameters stay float32."""
    names = ("float32", "bfloat16", "float16")
    return choose("dtype", name, {name: jnp.dtype(name) for name in names})


class Dense(nn.Module):
    """A dense layer whose kernel has logical axis names, and may be sharded."""

    features: int
    axes: tuple[str | None, str | None]  # of the kernel: input, output
    dtype: str = "float32"
    kernel_init: Callable = truncated_normal
    bias_init: Callable = nn.initializers.zeros
    use_bias: bool = True
    activation: str | None = None  # a name in `narrow.ACTIVATIONS` of what follows

    @nn.compact
    def __call__(self, x: Float[Array, "*b c"]) -> Float[Array, "*b d"]:
        """Transforms the last axis."""
        kernel, *weights = make_weights(self, x.shape[-1])
        if self.activation is None:
            return apply_dense(x, kernel, *weights, axes=self.axes, dtype=self.dtype)
        y = apply_dense(x, kernel, axes=self.axes, dtype=self.dtype)
        activate = choose("activation", self.activation, ACTIVATIONS)

        def finish(y, *bias):
            return activate(add_weight(y, *bias) if bias else y)

        # With the bias inside, what the product wrote is what is kept.
        return keep_input(finish)(y, *map(jnp.asarray, weights))


def make_weights(layer: "Dense | DenseWeights", width: int) -> tuple[Array | np.ndarray, ...]:
    """Makes the kernel of a dense layer, and any bias, as parameters of that layer."""
    init = nn.with_logical_partitioning(layer.kernel_init, layer.axes)
    kernel = layer.param("kernel", init, (width, layer.features))
    if not layer.use_bias:
        return (kernel,)
    return kernel, layer.param("bias", layer.bias_init, (layer.features,))


class DenseWeights(Dense):
    """The weights of a dense layer, for several that read the same rows."""

    @nn.compact
    def __call__(self, width: int) -> tuple[Array | np.ndarray, ...]:
        """Returns the kernel and, if there is one, the bias, for inputs of a width."""
        return make_weights(self, width)


def apply_dense(
    x: Float[Array, "*b c"],
    kernel: Float[Array | np.ndarray, "c d"],
    *bias: Float[Array | np.ndarray, "d"],
    axes: tuple[str | None, str | None],
    dtype: str,
) -> Float[Array, "*b d"]:
    """Applies the weights of a dense layer to rows."""
    made = compute_dtype(dtype)
    y = layer_weights.apply_weight(multiply_rows, x.astype(made), kernel, axes, made)
    return keep_result(add_weight(y, *bias)) if bias else y


def apply_together(
    x: Float[Array, "*b c"], layers: Sequence[DenseWeights]
) -> list[Float[Array, "*b d"]]:
    """Applies dense layers to the same rows, which are read and kept once.

    The layers have equal axes and types, and no activations.
    """
    first = layers[0]
    dtype = compute_dtype(first.dtype)
    weights = [layer(x.shape[-1]) for layer in layers]
    kernels = tuple(kernel for kernel, *_ in weights)
    args = x.astype(dtype), kernels, first.axes, dtype
    products = layer_weights.apply_weights(_multiply_each, *args)
    biases = (bias for _, *bias in weights)
    pairs = zip(products, biases, strict=True)
    return [keep_result(add_weight(y, *bias)) if bias else y for y, bias in pairs]


def _multiply(x: Array, *kernels: Array) -> tuple[Array, ...]:
    return tuple(multiply_rows(x, kernel) for kernel in kernels)


def _multiply_one_back(x: Array, kernel: Array, cotangent: Array) -> tuple[Array, Array]:
    """Transposes the product, so that not even a traced program makes it again."""
    (rows,) = jax.linear_transpose(lambda x: multiply_rows(x, kernel), x)(cotangent)
    (grad,) = jax.linear_transpose(lambda kernel: multiply_rows(x, kernel), kernel)(cotangent)
    return rows, grad


def _multiply_back(kept: tuple, cotangents: tuple[Array, ...]) -> tuple[Array, ...]:
    x, *kernels = kept
    total, grads = None, []
    for kernel, cotangent in zip(kernels, cotangents, strict=True):
        mine, grad = _multiply_one_back(x, kernel, cotangent)
        # In this order cuBLAS adds the sum of those before, as it writes its product.
        total = mine if total is None else mine + total
        grads.append(grad)
    return total, *grads


_multiply_each = jax.custom_vjp(_multiply)
"""Multiplies every row by each of several kernels."""
_multiply_each.defvjp(lambda *kept: (_multiply(*kept), kept), _multiply_back)


def add_weight(x: Float[Array, "..."], weight: Array | np.ndarray) -> Float[Array, "..."]:
    """Adds a parameter to every row, in the type of the rows.

    It is broadcast over the rows before it is cast, so that its gradient is summed in float32.
    """
    return x + jnp.broadcast_to(weight, x.shape).astype(x.dtype)


def lay_out_rows(x: Float[Array, "*b c"]) -> Float[Array, "*b c"]:
    """Keeps the channels of a row together in memory where XLA would not.

    For NVIDIA GPUs it lays a residual stream [b t c] out with the batch last if the products
    around it allow that (openxla.org/xla issue 1851); every normalization is then several kernels.
    """
    place = traced.weight_place()
    # Before jax 0.11 every device would gather the rows of all.
    splits = place is None or place.mesh.size == 1 or jax.__version_info__ >= (0, 11)
    if traced.traced_device().platform != "gpu" or not splits:
        return x
    return with_layout_constraint(x, Layout(major_to_minor=tuple(range(x.ndim))))


def multiply_rows(x: Float[Array, "*b c"], kernel: Float[Array, "c d"]) -> Float[Array, "*b d"]:
    """Multiplies every row by a kernel.

    On CPUs all leading axes are merged first. Otherwise XLA transposes one operand of the kernel's
    gradient in memory, and fuses everything that produces it into that strided copy. In one run on
    one core, forward and backward at batch 8, merging took ViT-B/32 from 1.7 to 1.2 s and
    EfficientNet-B0 from 2.5 to 1.6 s. On TPUs, merging axes of odd sizes may itself be a copy.
    """
    merged = traced.traced_device().platform == "cpu"
    rows = x.reshape(-1, x.shape[-1]) if merged else x
    product = jax.lax.dot_general(rows, kernel, (((rows.ndim - 1,), (0,)), ((), ())))
    return product.reshape(*x.shape[:-1], -1) if merged else product


class DropPath(nn.Module):
    """Stochastic depth: drops a residual branch for some examples, and scales up the others.

    Huang et al., "Deep Networks with Stochastic Depth", 2016, with the scaling of dropout, so that
    the expectation is the branch itself.
    """

    rate: float | Array  # probability of a drop; an array in a loop over blocks

    @nn.compact
    def __call__(self, x: Float[Array, "b *rest"], train: bool) -> Float[Array, "b *rest"]:
        """Sets dropped rows of a branch to zero."""
        if not train:
            return x
        if isinstance(self.rate, jax.Array):
            stays = 1 - self.rate
            shape = x.shape[:1] + (1,) * (x.ndim - 1)
            kept = jax.random.bernoulli(self.make_rng("dropout"), stays, shape)
            return jnp.where(kept, x / stays.astype(x.dtype), 0)
        every_axis_but_the_first = tuple(range(1, x.ndim))
        drop = nn.Dropout(self.rate, broadcast_dims=every_axis_but_the_first)
        return drop(x, deterministic=False)


class MlpBlock(nn.Module):
    """The perceptron of a transformer block: expand, activation, project."""

    mlp_dim: int
    activation: str = "gelu"
    dtype: str = "float32"
    dropout: float = 0.0  # on the hidden layer

    @nn.compact
    def __call__(self, x: Float[Array, "b l c"], train: bool = False) -> Float[Array, "b l c"]:
        """Transforms every token separately."""
        axes = "embed", "mlp"
        up = Dense(self.mlp_dim, axes, self.dtype, activation=self.activation, name="up")
        y = nn.Dropout(self.dropout, deterministic=not train)(up(x))
        return Dense(x.shape[-1], ("mlp", "embed"), dtype=self.dtype, name="down")(y)
