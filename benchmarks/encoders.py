"""Encoders against torch's, forward and forward plus backward, at batch 8 in one run.

    python benchmarks/encoders.py                          # all five
    python benchmarks/encoders.py --encoders=resnet50 --batch=8 --rounds=5
    python benchmarks/encoders.py --batch=256 --dtype=bfloat16    # on a GPU

Their side is transformers' model of the same architecture, run eagerly on the same cores (or on the
GPU, where torch sees one; there float32 is multiplied in TF32 on both sides). In bfloat16 weights
are float32 on both sides, and theirs compute under autocast. The forward pass is in evaluation mode
without gradients; with the backward pass both train: batch statistics, gradients of all parameters.
The bound is the FLOPs that XLA counts over the rate of a large matmul in the same run: no encoder
can be faster.
"""

import functools
import pathlib
import sys
from collections.abc import Callable, Iterator

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import torch
import transformers

from benchmarks import measuring
from big_align.models.bert import Bert
from big_align.models.efficientnet import EfficientNet
from big_align.models.resnet import ResNet
from big_align.models.swin import Swin
from big_align.models.vit import ViT

LENGTH = 64
"""Tokens of a text, ALIGN's."""

Call = Callable[[], object]


def make_theirs() -> dict[str, Callable[[], torch.nn.Module]]:
    """Returns what makes torch's models; dropout is off on both sides."""
    t = transformers
    still = dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    b0 = dict(width_coefficient=1.0, depth_coefficient=1.0, image_size=224)
    b0 |= dict(hidden_dim=1280, drop_connect_rate=0.0)
    return {
        "vit_b32": lambda: t.ViTModel(t.ViTConfig(patch_size=32), add_pooling_layer=False),
        "resnet50": lambda: t.ResNetModel(t.ResNetConfig()),
        "swin_tiny": lambda: t.SwinModel(t.SwinConfig(drop_path_rate=0.0)),
        "efficientnet_b0": lambda: t.EfficientNetModel(t.EfficientNetConfig(**b0)),
        "bert_base": lambda: t.BertModel(t.BertConfig(**still), add_pooling_layer=False),
    }


OURS = {
    "vit_b32": functools.partial(ViT, "b/32"),
    "resnet50": functools.partial(ResNet, "50"),
    "swin_tiny": functools.partial(Swin, "tiny"),
    "efficientnet_b0": functools.partial(EfficientNet, "b0", head=True, drop_path=0.0),
    "bert_base": functools.partial(Bert, "base", dropout=0.0),
}


def draw_inputs(name: str, batch: int) -> np.ndarray:
    """Returns images, channels last, or token ids."""
    rng = np.random.default_rng(0)
    if name == "bert_base":
        return rng.integers(1, 30522, (batch, LENGTH)).astype(np.int32)
    return rng.standard_normal((batch, 224, 224, 3), np.float32)


def make_jax(model: nn.Module, inputs: np.ndarray) -> tuple[Call, Call, float, float]:
    """Compiles ours; returns both calls and their FLOPs."""
    text = inputs.ndim == 2
    arrays = (jnp.asarray(inputs), jnp.ones(inputs.shape, bool)) if text else (jnp.asarray(inputs),)
    variables = nn.meta.unbox(jax.jit(model.init)(jax.random.PRNGKey(0), *arrays))
    statistics_ = {k: v for k, v in variables.items() if k != "params"}

    def loss(params, *arrays):
        variables = {"params": params, **statistics_}
        (pooled, tokens), _ = model.apply(
            variables, *arrays, train=True, mutable=list(statistics_) or ["batch_stats"]
        )
        return pooled.sum() + tokens.sum(dtype=jnp.float32)

    forward = jax.jit(model.apply).lower(variables, *arrays).compile()
    both = jax.jit(jax.grad(loss)).lower(variables["params"], *arrays).compile()
    calls = (
        lambda: jax.block_until_ready(forward(variables, *arrays)),
        lambda: jax.block_until_ready(both(variables["params"], *arrays)),
    )
    return *calls, *(c.cost_analysis()["flops"] for c in (forward, both))


def make_torch(model: torch.nn.Module, inputs: np.ndarray, dtype: str) -> tuple[Call, Call]:
    """Returns theirs as calls."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    autocast = functools.partial(
        torch.autocast, device, getattr(torch, dtype), enabled=dtype != "float32"
    )
    array = inputs if inputs.ndim == 2 else np.ascontiguousarray(inputs.transpose(0, 3, 1, 2))
    array = torch.from_numpy(array).to(device)
    model = model.to(device)

    def wait() -> None:
        if device == "cuda":
            torch.cuda.synchronize()

    def forward() -> None:
        model.eval()
        with torch.no_grad(), autocast():
            model(array)
        wait()

    def both() -> None:
        model.train()
        model.zero_grad()
        with autocast():
            outputs = model(array)
            pooled = getattr(outputs, "pooler_output", None)
            loss = outputs.last_hidden_state.sum() + (0 if pooled is None else pooled.sum())
        loss.backward()
        wait()

    return forward, both


def compare(name: str, batch: int, dtype: str, rounds: int, rate: float) -> Iterator[tuple]:
    """Yields the rows of an encoder, of both passes."""
    inputs = draw_inputs(name, batch)
    *calls, forward, both = make_jax(OURS[name](dtype=dtype), inputs)
    theirs = make_torch(make_theirs()[name](), inputs, dtype)
    passes = ("forward", forward), ("forward and backward", both)
    for (what, flops), their, our in zip(passes, theirs, calls, strict=True):
        seconds = measuring.time_in_turns({"theirs": their, "ours": our}, rounds)
        a, b = seconds["theirs"], seconds["ours"]
        bound = flops / rate
        yield name, what, 1e3 * a, 1e3 * b, a / b, flops / 1e9, 1e3 * bound, f"{bound / b:.0%}"


def main() -> None:
    """Prints the table."""
    parser = measuring.make_parser(__doc__, batch=8, rounds=5)
    parser.add_argument("--encoders", nargs="+", choices=OURS, default=list(OURS))
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    options = parser.parse_args()
    rate = measuring.measure_matmul(options.dtype)
    title = f"{measuring.describe_device()}; a large matmul: {rate / 1e9:.0f} GFLOP/s; batch "
    title += f"{options.batch}, {options.dtype}, {options.rounds} rounds in turn"
    columns = ("encoder", "pass", "torch (ms)", "ours (ms)", "torch / ours", "GFLOP", "bound (ms)")
    given = options.batch, options.dtype, options.rounds, rate
    rows = (row for name in options.encoders for row in compare(name, *given))
    measuring.print_table((*columns, "of a matmul"), rows, title)


if __name__ == "__main__":
    main()
