"""open_clip's loss and its training step, and memeff's loss, where they are installed.

The step is that of open_clip's trainer with `--torchcompile --precision=amp_bfloat16`: a compiled
model under autocast, its ClipLoss, AdamW with two groups, and a clamped scale. Its model is loaded
without the package's other modules, which need more than torch.
"""

import functools
import importlib.util
import math
import sys
import time
import types
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from benchmarks.contrastive_loss import SCALE
from benchmarks.gpu.calls import Call

OPEN_CLIP, MEMEFF = "open_clip ClipLoss", "memeff"
OPEN_CLIP_STEP = "open_clip, compiled"


def can_run(package: str) -> bool:
    """Returns whether torch and a package are there, for the device that JAX uses."""
    if any(importlib.util.find_spec(name) is None for name in ("torch", package)):
        return False
    import torch

    return jax.default_backend() != "gpu" or torch.cuda.is_available()


def load(name: str) -> Any:
    """Imports a module of open_clip alone; the package itself needs torchvision and more."""
    if "open_clip" not in sys.modules:
        package = importlib.util.module_from_spec(importlib.util.find_spec("open_clip"))
        sys.modules["open_clip"] = package  # without executing it
    # One class of torchvision is imported, and not used here; timm and transformers may be missing.
    vision = ("torchvision", "torchvision.ops", "torchvision.ops.misc")
    instead = {each: types.ModuleType(each) for each in vision}
    instead |= dict.fromkeys(("timm", "transformers"))
    instead[vision[-1]].FrozenBatchNorm2d = type("FrozenBatchNorm2d", (), {})
    before = {each: sys.modules[each] for each in instead if each in sys.modules}
    sys.modules |= instead
    try:
        return importlib.import_module(f"open_clip.{name}")
    finally:
        for each in instead:
            del sys.modules[each]
        sys.modules |= before


def _prepare() -> tuple[Any, str, Callable[[Any], None]]:
    """Returns torch with TF32 on, as open_clip's trainer has it, the device, and how to wait."""
    import torch

    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.allow_tf32 = True
    if jax.default_backend() == "gpu":
        return torch, "cuda", lambda _: torch.cuda.synchronize()
    return torch, "cpu", lambda _: None


def make_losses(arrays: tuple[Any, ...], dtype: str) -> dict[str, Callable[[], Call]]:
    """Returns what makes the calls of other libraries' losses; nothing where there are none."""
    makers = {}
    if can_run("open_clip"):
        makers[OPEN_CLIP] = functools.partial(_make_open_clip_loss, arrays, dtype)
    if can_run("memeff") and jax.default_backend() == "gpu":
        makers[MEMEFF] = functools.partial(_make_memeff_loss, arrays, dtype)
    return makers


def _make_open_clip_loss(arrays: tuple[Any, ...], dtype: str) -> Call:
    torch, device, _ = _prepare()
    scale = torch.tensor(float(arrays[2]), device=device, requires_grad=True)
    loss = load("loss").ClipLoss()
    return _make_loss([*_move(arrays[:2], dtype), scale], loss)


def _make_memeff_loss(arrays: tuple[Any, ...], dtype: str) -> Call:
    from memeff import MemoryEfficientCLIPLoss

    loss = MemoryEfficientCLIPLoss(temperature=1 / SCALE, normalized_inputs=True, stable=False)
    return _make_loss(_move(arrays[:2], dtype), loss)


def _move(arrays: tuple[Any, ...], dtype: str) -> list[Any]:
    torch, device, _ = _prepare()
    tensors = (torch.from_numpy(np.array(x, np.float32)) for x in arrays)
    return [x.to(device, getattr(torch, dtype)).requires_grad_() for x in tensors]


def _make_loss(tensors: list[Any], loss: Callable[..., Any]) -> Call:
    torch, device, wait = _prepare()

    def start() -> Any:
        for x in tensors:
            x.grad = None
        value = loss(*tensors)
        value.backward()
        return value

    return Call(start, wait, {"mib": mib} if (mib := _measure_memory(start, device)) else {})


def _measure_memory(start: Callable[[], Any], device: str) -> float | None:
    """Returns the MiB that a call needs at its highest, on a GPU."""
    import torch

    start()
    if device == "cpu":
        return None
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    start()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def make_step(sizes: Any, batch: int, tiny: bool) -> dict[str, Callable[[], Call]]:
    """Returns what makes a call of open_clip's step, or nothing where it is not installed.

    The sizes are `steps.Sizes`; a tiny model is not compiled for real.
    """
    if not can_run("open_clip"):
        return {}
    return {OPEN_CLIP_STEP: functools.partial(_make_step, sizes, batch, tiny)}


def _make_step(sizes: Any, batch: int, tiny: bool) -> Call:
    begin = time.perf_counter()
    torch, device, wait = _prepare()
    torch.backends.cudnn.benchmark = True
    modules, losses = load("model"), load("loss")
    width, depth, _, heads = sizes.image
    image = modules.CLIPVisionCfg(
        layers=depth, width=width, patch_size=sizes.patch, image_size=sizes.pixels,
        head_width=width // heads,
    )  # fmt: skip
    width, depth, _, heads = sizes.text
    text = modules.CLIPTextCfg(
        context_length=sizes.tokens, vocab_size=sizes.vocabulary, width=width, heads=heads,
        layers=depth,
    )  # fmt: skip
    model = modules.CLIP(sizes.dim, image, text, output_dict=True).to(device).train()
    optimizer = _make_optimizer(torch, model)
    compiled = torch.compile(model, backend="eager" if tiny else "inductor")
    loss = losses.ClipLoss()
    images = torch.randn(batch, 3, sizes.pixels, sizes.pixels, device=device)
    texts = torch.randint(1, sizes.vocabulary, (batch, sizes.tokens), device=device)

    def start() -> Any:
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.bfloat16):
            total = loss(**compiled(images, texts))
        total.backward()
        optimizer.step()
        with torch.no_grad():
            model.logit_scale.clamp_(0, math.log(100))
        return total

    mib = _measure_memory(start, device)
    wait(None)
    facts = {"compile_s": time.perf_counter() - begin}
    return Call(start, wait, facts | ({"mib": mib} if mib else {}))


def _make_optimizer(torch: Any, model: Any) -> Any:
    """AdamW as in open_clip's trainer: vectors, norms, biases and the scale do not decay."""
    named = list(model.named_parameters())
    words = ("bn", "ln", "bias", "logit_scale")
    kept = [p for name, p in named if p.ndim < 2 or any(word in name for word in words)]
    seen = {id(p) for p in kept}
    decaying = [p for _, p in named if id(p) not in seen]
    groups = [{"params": kept, "weight_decay": 0.0}, {"params": decaying, "weight_decay": 0.2}]
    return torch.optim.AdamW(groups, lr=5e-4, betas=(0.9, 0.98), eps=1e-6)
