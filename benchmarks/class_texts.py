"""Memory and time of a step over the texts of many classes, against encoding them at once.

    python benchmarks/class_texts.py                            # times 2,048 class texts
    python benchmarks/class_texts.py --classes=21841            # times as many as ImageNet-22K has
    python benchmarks/class_texts.py --length=77 --memory=21841 # memory of the longest texts
    python benchmarks/class_texts.py --classes=0                # memory alone

A step here is iCLIP's without the image tower: the embeddings of all class texts, the loss of a
batch of labeled images, and the gradients of the text tower and of the image embeddings. "at once"
encodes the class texts in one piece, split evenly over the devices; "in chunks" is ours: --chunk
texts per device at a time, computed again in the backward pass.

Memory is that of the temporaries of the compiled program on each device, in MiB, for CLIP's text
tower (12 x 512) on 1 device and on 8, at an eighth of --memory classes, a quarter, a half, and all.
"embeddings" are what has to grow: the unit-length embeddings of all classes and their gradients,
gathered on every device, and the logits of its images where the loss keeps them. Ours is expected
to grow by a small multiple of these, and the rest to stay; at once it grows by the activations.
Classes are dealt out evenly: a chunk has up to --chunk texts, and the rest varies as they do.

Times are of a smaller text tower (--width, --depth), medians over rounds that take turns. Bound:
3 times the FLOPs of the tower's forward pass at once, 4 times in chunks, whose activations are
computed twice, at the rate of a large matrix product in the same run. So ours is expected to take
4/3 of the time where both fit; what it saves is memory. On CPU the 8 devices share the same cores,
so that a bound for 21,841 / 8 texts a device is the same time as for 21,841 on one.
"""

import argparse
import os
import pathlib
import sys
from collections.abc import Callable

os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
)
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import measuring
from benchmarks.measuring import MIB
from big_align.data.labels.classes import ClassList
from big_align.models.clip_text import ClipText
from big_align.models.dual_encoder import DualEncoder
from big_align.models.vit import ViT
from big_align.objectives.iclip import Iclip
from big_align.parallel.meshes import batch_sharding, make_mesh, replicated
from big_align.parallel.shards import map_rows

AT_ONCE, CHUNKS = "at once", "in chunks"
PASSES = {AT_ONCE: 3, CHUNKS: 4}


class RandomIds:
    """Stands for a tokenizer: texts of exactly the given length."""

    def __init__(self, length: int):
        self.length = length

    def __call__(self, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """Returns random ids."""
        shape = len(texts), self.length
        return np.random.default_rng(0).integers(1, 1000, shape, np.int32), np.ones(shape, bool)


class AtOnce(Iclip):
    """iCLIP that encodes all class texts in one piece, and keeps its activations."""

    def prepare(self, params, batch, rng):
        """Embeds the class texts, a part on each device."""
        texts = (jnp.asarray(x) for x in (self.class_texts.text, self.class_texts.text_mask))
        encode = lambda params, rows: self.model.apply(  # noqa: E731
            {"params": params}, *rows, True, rngs={"dropout": rng}, method="encode_text"
        )
        return map_rows(encode, params["model"], tuple(texts), self.mesh)


def make_step(
    name: str, tower: ClipText, classes: int, devices: int, options: argparse.Namespace
) -> tuple[jax.stages.Compiled, Callable[[], tuple], int]:
    """Compiles the step of one side.

    With it come what makes its arguments, and the bytes that have to grow with the classes.
    """
    mesh = make_mesh(devices=jax.devices()[:devices])
    # Nothing is computed by the image tower; its width is that of the embeddings.
    image = ViT(variant="ti/16", width=tower.output_dim, heads=1, depth=1)
    names = ClassList.from_names([str(i) for i in range(classes)])
    side = {AT_ONCE: AtOnce, CHUNKS: Iclip}[name]
    objective = side(
        DualEncoder(image, tower),
        mesh,
        names,
        RandomIds(options.length),
        template="a photo of a {}",
        chunk=options.chunk,
    )
    batch_size, dim = options.batch, tower.output_dim

    def step(params, zimg, label):
        batch = {"label": label, "mask": label >= 0, "text_mask": jnp.ones((batch_size, 1), bool)}

        def loss(params, zimg):
            prepared = objective.prepare(params, batch, jax.random.PRNGKey(0))
            outputs = {"zimg": zimg, "ztxt": zimg}
            return objective.loss(params, outputs, prepared, batch)[0]

        return jax.value_and_grad(loss, argnums=(0, 1))(params, zimg)

    def init():
        text = jnp.ones((1, options.length), jnp.int32)
        key = jax.random.PRNGKey(0)
        params = objective.model.init(key, text, text > 0, method="encode_text")["params"]
        zimg = jax.random.normal(key, (batch_size, dim))
        label = jnp.arange(batch_size) % classes
        zimg /= jnp.linalg.norm(zimg, axis=1, keepdims=True)
        return {"model": nn.meta.unbox(params), "log_scale": jnp.float32(2.0)}, zimg, label

    whole, rows = replicated(mesh), batch_sharding(mesh)
    shardings = whole, rows, rows
    arguments = jax.jit(init, out_shardings=shardings)
    compiled = jax.jit(step, in_shardings=shardings, out_shardings=(whole, (whole, rows)))
    logits = 4 * batch_size // devices * (classes + batch_size)
    kept = logits if logits <= objective.keep_logits_bytes else 0
    needed = 2 * 4 * (classes + batch_size) * dim + kept
    return compiled.lower(*jax.eval_shape(init)).compile(), arguments, needed


def count_forward_flops(tower: ClipText, classes: int, length: int) -> float:
    """Returns the FLOPs of encoding all class texts once: dense layers, attention, projection."""
    width, depth, mlp = (tower.resolved[key] for key in ("width", "depth", "mlp_dim"))
    token = depth * (2 * (4 * width**2 + 2 * width * mlp) + 4 * length * width)
    return float(classes) * (length * token + 2 * width * tower.output_dim)


def print_memory(options: argparse.Namespace) -> None:
    """Prints the memory of a device by the number of classes."""
    tower = ClipText(variant="b", remat=options.remat)
    counts = sorted({max(options.memory // part, 1) for part in (8, 4, 2, 1)})
    temporaries = {}

    def describe(key: tuple[str, int, int]) -> tuple:
        name, devices, classes = key
        compiled, _, needed = make_step(name, tower, classes, devices, options)
        temp = compiled.memory_analysis().temp_size_in_bytes
        temporaries[key] = temp, needed
        sizes = temp, needed, temp - needed
        return name, devices, classes, *(f"{size / MIB:,.0f}" for size in sizes)

    keys = [
        (name, devices, classes)
        for devices in (1, 8)
        for name in (AT_ONCE, CHUNKS)
        for classes in (counts if name == CHUNKS else counts[-1:])
    ]
    columns = "", "devices", "classes", "temporaries", "embeddings", "rest"
    title = f"Memory a device, MiB: text tower 12 x 512, length {options.length}, "
    title += f"{options.chunk} texts a chunk, {options.batch} images"
    measuring.print_table(columns, map(describe, keys), title)
    for devices in (1, 8):
        first, last = (temporaries[CHUNKS, devices, counts[i]] for i in (0, -1))
        fraction = temporaries[AT_ONCE, devices, counts[-1]][0] / last[0]
        print(f"G = {devices}: in chunks {fraction:.1f} times less than at once", end="")
        if last[1] > first[1]:
            growth = (last[0] - first[0]) / (last[1] - first[1])
            print(f", and it grows by {growth:.2f} times the embeddings", end="")
        print()


def print_times(options: argparse.Namespace) -> None:
    """Prints the time of a step of either side, and how near it is to its bound."""
    width, depth = options.width, options.depth
    tower = ClipText(
        width=width, depth=depth, mlp_dim=4 * width, heads=width // 64, vocab_size=1000
    )
    calls, losses = {}, {}
    for devices in (1, 8):
        for name in (AT_ONCE, CHUNKS):
            compiled, init, _ = make_step(name, tower, options.classes, devices, options)
            arguments = init()
            run = lambda c=compiled, x=arguments: jax.block_until_ready(c(*x))  # noqa: E731
            calls[name, devices], losses[name, devices] = run, float(run()[0])
    matmul, product = measuring.make_matmul()
    seconds = measuring.time_in_turns(calls | {"matmul": matmul}, options.rounds)
    rate = product / seconds["matmul"]
    forward = count_forward_flops(tower, options.classes, options.length)

    def describe(key: tuple[str, int]) -> tuple:
        name, devices = key
        taken, bound = seconds[key], PASSES[name] * forward / rate
        shares = f"{bound / taken:.0%}", taken / seconds[AT_ONCE, devices]
        return name, devices, taken, bound, *shares

    columns = "", "devices", "s", "bound", "of bound", "of at once"
    title = f"Time of a step: text tower {depth} x {width}, {options.classes} classes, length "
    title += f"{options.length}, {measuring.describe_device()}; {rate / 1e9:.0f} GFLOP/s"
    measuring.print_table(columns, map(describe, calls), title)
    print(f"losses differ by {max(losses.values()) / min(losses.values()) - 1:.1e} at most")
    whole = 4 * count_forward_flops(ClipText(variant="b"), 21841, options.length)
    print(f"CLIP's tower over 21841 texts at this rate: {whole / 1e12:.0f} TFLOP, ", end="")
    print(f"{whole / rate:.0f} s on 1 such device, {whole / rate / 8:.0f} s on each of 8")


def main() -> None:
    """Runs what the command line asks for."""
    parser = measuring.make_parser(__doc__, rounds=3, width=128, depth=2)
    add = parser.add_argument
    add("--classes", type=int, default=2048, help="class texts to time; 0 for none")
    add("--memory", type=int, default=21841, help="most classes for memory; 0 for none")
    add("--length", type=int, default=32, help="tokens per class text")
    add("--chunk", type=int, default=128, help="texts encoded at a time per device")
    add("--batch", type=int, default=128, help="images per batch, over all devices")
    add("--remat", action="store_true", help="recompute blocks, on both sides")
    options = parser.parse_args()
    if options.memory:
        print_memory(options)
    if options.classes:
        print_times(options)


if __name__ == "__main__":
    main()
