"""Whole train steps: MLCD's, and CLIP's against open_clip's with the same batch and sizes.

They are built from the package's objectives, optimizers and step, without configs, of which the
settings are repeated here. Batches are noise, and lie on the device.
"""

import dataclasses
import importlib.util
import sys
import time
import types
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

CONFIGS = "ml_collections"
MISSING = importlib.util.find_spec(CONFIGS) is None
if MISSING:  # it is only named in annotations of what follows
    sys.modules[CONFIGS] = types.ModuleType(CONFIGS)
    sys.modules[CONFIGS].ConfigDict = type("ConfigDict", (), {})

from benchmarks.gpu import theirs, ways
from benchmarks.gpu.calls import Call, extra_bytes
from benchmarks.gpu.session import Session, measure_turns
from benchmarks.gpu.tables import Row
from big_align.core.types import Batch, Objective
from big_align.models.clip_text import ClipText
from big_align.models.dual_encoder import DualEncoder
from big_align.models.swin import Swin
from big_align.models.vit import ViT
from big_align.objectives.clip import Clip
from big_align.objectives.mlcd import Mlcd
from big_align.objectives.unicl import Unicl
from big_align.parallel.batches import place_batch
from big_align.parallel.devices import choices
from big_align.parallel.devices.compiler_flags import choose_options
from big_align.parallel.meshes import make_mesh
from big_align.training import optimizers
from big_align.training.flops import model_flops
from big_align.training.state import describe_state
from big_align.training.step import compile_step, make_train_step

if MISSING:
    del sys.modules[CONFIGS]
OURS = "ours"
OPTIMIZER = {"name": "adamw", "weight_decay": 0.2, "b2": 0.98}
SCHEDULE = {"decay": "cosine", "learning_rate": 5e-4, "warmup_steps": 2000}
STEPS = 380_603
MLCD_IMAGE = {
    "variant": "b/32",
    "input_norm": True,
    "patch_bias": False,
    "layer_norm_eps": 1e-5,
    "activation": "quick_gelu",
    "dtype": "bfloat16",
    "remat": "auto",  # here "none", which fits where there is memory for the batch
}
"""The image tower of configs/mlcd.py."""
MLCD = {
    "num_clusters": 1_000_000,
    "labels_per_image": 8,
    "sampling_ratio": 0.1,
    "margin": 0.3,
    "scale": 64.0,
}
"""The objective of configs/mlcd.py."""
UNICL_IMAGE = {"variant": "tiny", "drop_path": 0.2, "dtype": "bfloat16"}
UNICL_TEXT = {
    "vocab_size": 49408,
    "max_length": 77,
    "activation": "quick_gelu",
    "dtype": "bfloat16",
}
"""The towers of configs/unicl_imagenet.py."""


@dataclasses.dataclass(frozen=True)
class Sizes:
    """The sizes of a CLIP model; of a tower: width, blocks, hidden width and heads."""

    image: tuple[int, int, int, int]
    text: tuple[int, int, int, int]
    patch: int
    dim: int
    pixels: int = 224
    tokens: int = 77
    vocabulary: int = 49408


B32 = Sizes((768, 12, 3072, 12), (512, 12, 2048, 8), 32, 512)
B16 = Sizes((768, 12, 3072, 12), (512, 12, 2048, 8), 16, 512)
L14 = Sizes((1024, 24, 4096, 16), (768, 12, 3072, 12), 14, 768)
TINY = Sizes((32, 1, 128, 2), (32, 1, 128, 2), 16, 16, pixels=32, tokens=7, vocabulary=64)
LARGE_MEMORY = 100 * 2**30
"""With less memory the batch of CLIP is half: both sides' activations are on the device."""


def make_call(objective: Objective, batch: Batch, mesh: Any) -> tuple[Call, float]:
    """Compiles the step of an objective, and makes its state; also returns the model FLOPs."""
    begin = time.perf_counter()
    rate = optimizers.make_schedule(STEPS, **SCHEDULE)
    optimizer = optimizers.make_optimizer(rate, **OPTIMIZER)
    rows = optimizers.make_row_optimizer(**OPTIMIZER) if objective.table_sizes else None
    shapes, create = describe_state(objective, optimizer, batch, mesh, row_optimizer=rows)
    step = make_train_step(objective, optimizer, mesh, row_optimizer=rows, learning_rate=rate)
    with choices.collect() as chosen:
        compiled = compile_step(step, shapes, batch, mesh, choose_options(mesh, {}))
    facts = {"compile_s": time.perf_counter() - begin, "mib": extra_bytes(compiled) / 2**20}
    facts |= {"chosen": list(chosen)} if chosen else {}
    state = create()

    def start() -> Any:
        nonlocal state
        state, metrics = compiled(state, batch)
        return metrics

    flops = model_flops(objective, shapes, batch, mesh)
    return Call(start, jax.block_until_ready, facts, compiled.as_text), flops


def measure_step(
    session: Session,
    objective: Objective,
    batch: Batch,
    mesh: Any,
    other: dict[str, Callable[[], Call]],
) -> list[Row]:
    """Times a step of ours, and another with which it is compared, in turns."""
    pairs, flops = len(batch["image"]), []

    def ours() -> Call:
        call, count = make_call(objective, batch, mesh)
        flops.append(count)
        return call

    reference = next(iter(other), "")
    rows = measure_turns(session, {OURS: ours, **other}, None, reference, rounds=4, turn=0.8)
    for row in rows:
        if "ms" not in row:
            continue
        row["images_s"] = pairs / row["ms"] * 1e3
        if flops and (bound := session.bound(flops[0], 0)) is not None:
            row |= {"bound_ms": 1e3 * bound, "share": 1e3 * bound / row["ms"], "batch": pairs}
    return rows


def build_mlcd(mesh: Any, tiny: bool) -> Mlcd:
    """Builds the objective of configs/mlcd.py."""
    image = MLCD_IMAGE | ({"width": 32, "depth": 1, "heads": 2} if tiny else {})
    settings = MLCD | ({"num_clusters": 100} if tiny else {})
    model = DualEncoder(
        ViT(**image), None, 512, image_projection=True, projection_bias=False, loss_dtype="bfloat16"
    )
    return Mlcd(model, mesh, **settings)


def make_clip_model(sizes: Sizes, dtype: str = "bfloat16", keep: float = 1.0) -> DualEncoder:
    """Makes open_clip's architecture, without rematerialization."""
    names = ("width", "depth", "mlp_dim", "heads")
    common = {"activation": "gelu", "layer_norm_eps": 1e-5, "dtype": dtype}
    image = common | dict(zip(names, sizes.image, strict=True))
    text = common | dict(zip(names, sizes.text, strict=True))
    vit = ViT(f"b/{sizes.patch}", **image, input_norm=True, patch_bias=False, keep=keep)
    tower = ClipText(**text, vocab_size=sizes.vocabulary, max_length=sizes.tokens)
    outside = dict(image_projection=True, projection_bias=False, loss_dtype=dtype)
    return DualEncoder(vit, tower, sizes.dim, **outside)


def build_unicl(mesh: Any, tiny: bool, attention: str = "auto") -> Unicl:
    """Builds the objective of configs/unicl_imagenet.py."""
    small = {"width": 8, "depths": (1,), "heads": (2,)}, {"width": 16, "depth": 1, "heads": 2}
    image, text = small if tiny else ({}, {})
    swin = Swin(**UNICL_IMAGE | image, attention=attention)
    tower = ClipText(**UNICL_TEXT | text, attention=attention)
    return Unicl(DualEncoder(swin, tower, 512, image_projection=True, projection_bias=False), mesh)


def draw_images(size: int, pixels: int) -> dict[str, jax.Array]:
    """Returns noise, and that all of it is real."""
    shape = size, pixels, pixels, 3
    image = jax.random.randint(jax.random.key(0), shape, 0, 256, jnp.uint8)
    return {"image": image, "mask": jnp.ones(size, bool)}


def measure_mlcd(session: Session) -> list[Row]:
    """Measures the step of configs/mlcd.py at 2048 images, with a million centers."""
    mesh = make_mesh(devices=jax.devices()[:1])
    objective = build_mlcd(mesh, session.tiny)
    size, pixels = (4, 32) if session.tiny else (2048, 224)
    shape = size, objective.labels_per_image
    clusters = jax.random.randint(jax.random.key(1), shape, 0, objective.num_clusters)
    batch = draw_images(size, pixels) | {"clusters": clusters}
    return measure_step(session, objective, place_batch(batch, mesh), mesh, {})


def measure_unicl(session: Session) -> list[Row]:
    """Measures the step of configs/unicl_imagenet.py at 512 pairs, and without attention's kernels.

    Labels are those of images of a thousand classes, or of fewer if there are fewer images.
    """
    mesh = make_mesh(devices=jax.devices()[:1])
    size, pixels = (4, 32) if session.tiny else (512, 224)
    shape = size, UNICL_TEXT["max_length"]
    text = jax.random.randint(jax.random.key(1), shape, 1, UNICL_TEXT["vocab_size"])
    batch = draw_images(size, pixels) | {"text": text, "text_mask": jnp.ones(shape, bool)}
    batch |= {"label": jax.random.randint(jax.random.key(2), (size,), 0, 1000)}
    placed = place_batch(batch, mesh)

    def without() -> Call:
        return make_call(build_unicl(mesh, session.tiny, "plain"), placed, mesh)[0]

    other = {ways.WITHOUT_KERNEL: without}
    return measure_step(session, build_unicl(mesh, session.tiny), placed, mesh, other)


def draw_pairs(size: int, sizes: Sizes, tokens: int | None = None) -> dict[str, jax.Array]:
    """Returns noise as images and as texts, of the length of a tower or of fewer tokens."""
    shape = size, tokens or sizes.tokens
    text = jax.random.randint(jax.random.key(1), shape, 1, sizes.vocabulary)
    batch = draw_images(size, sizes.pixels)
    return batch | {"text": text, "text_mask": jnp.ones(shape, bool)}


def fit_clip(session: Session, sizes: Sizes, size: int) -> tuple[Sizes, int]:
    """Returns the sizes of a step, and half the batch on a small device."""
    memory = (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit", LARGE_MEMORY)
    size //= 1 if memory >= LARGE_MEMORY else 2
    return (TINY, 4) if session.tiny else (sizes, size)


def measure_clip(session: Session, sizes: Sizes, size: int) -> list[Row]:
    """Measures a step of CLIP against open_clip's."""
    sizes, size = fit_clip(session, sizes, size)
    mesh = make_mesh(devices=jax.devices()[:1])
    other = theirs.make_step(sizes, size, session.tiny)
    placed = place_batch(draw_pairs(size, sizes), mesh)
    return measure_step(session, Clip(make_clip_model(sizes), mesh), placed, mesh, other)


def measure_masked(session: Session, sizes: Sizes, size: int) -> list[Row]:
    """Measures a step of CLIP that sees a quarter of the patches, against one that sees all."""
    sizes, size = fit_clip(session, sizes, size)
    mesh = make_mesh(devices=jax.devices()[:1])
    placed = place_batch(draw_pairs(size, sizes), mesh)

    def see_all() -> Call:
        return make_call(Clip(make_clip_model(sizes), mesh), placed, mesh)[0]

    objective = Clip(make_clip_model(sizes, keep=0.25), mesh)
    return measure_step(session, objective, placed, mesh, {"all patches": see_all})
