"""The nearest of a million centers: by a kernel that writes no products, and by XLA's products."""

import functools
import math

import jax
import jax.numpy as jnp

from benchmarks.gpu.calls import Call, compile_call
from benchmarks.gpu.session import Session, measure_turns
from benchmarks.gpu.tables import Row
from big_align.models.dual_encoder import normalize
from big_align.parallel.kernels import group_maxima
from big_align.parallel.meshes import make_mesh
from big_align.use.clusters.nearest_centers import BLOCK, CenterLayout, Centers, compile_search

KERNEL, PRODUCTS, EXACT = "candidates, kernel", "candidates, XLA's products", "float32"
CANDIDATES, COUNT, LIMIT = 8, 1, 1e-5


def _draw(rows: int, dim: int, seed: int, dtype: str) -> jax.Array:
    return normalize(jax.random.normal(jax.random.key(seed), (rows, dim))).astype(dtype)


def _search(k: int, block: int | None, candidates: int | None) -> tuple[CenterLayout, object]:
    layout = CenterLayout(k, make_mesh(devices=jax.devices()[:1]), block, candidates)
    return layout, compile_search(layout, COUNT)


def _place(layout: CenterLayout, centers: jax.Array) -> Centers:
    padded = jnp.pad(centers, ((0, layout.rows - len(centers)), (0, 0)))
    return layout.prepare(padded)


def _list_ways(session: Session) -> dict[str, tuple[int | None, int | None]]:
    block = 64 if session.tiny else BLOCK
    return {KERNEL: (None, CANDIDATES), PRODUCTS: (block, CANDIDATES), EXACT: (block, None)}


def check_clusters(session: Session) -> list[Row]:
    """Checks that each way finds the nearest centers that float32 finds, of rows and of ties."""
    k, rows, dim = (300, 64, 24) if session.tiny else (2 * group_maxima.UNIT - 100, 1000, 200)
    centers, x = _draw(k, dim, 0, "float32"), _draw(rows, dim, 1, "float16")
    wide = jnp.matmul(normalize(x.astype(jnp.float32)), centers.T, precision="highest")
    best, found = wide.max(axis=1), []
    for name, (block, candidates) in _list_ways(session).items():
        layout, search = _search(k, block, candidates)
        cosine, label = search(_place(layout, centers), x)
        chosen = jnp.take_along_axis(wide, label, axis=1)[:, 0]
        error = float(jnp.abs(best - cosine[:, 0]).max())
        error = max(error, float(jnp.abs(chosen - cosine[:, 0]).max()))
        met = math.isfinite(error) and error <= LIMIT
        row = {"what": f"{name}, {k} centers", "error": error, "limit": LIMIT, "met": met}
        found.append(row | {"kernel": layout.find_maxima is not None})
    return found


def measure_clusters(session: Session) -> list[Row]:
    """Times a chunk of 16,384 rows of 768 numbers against a million centers."""
    k, rows, dim = (300, 64, 24) if session.tiny else (1_000_000, 2**14, 768)
    centers, x = _draw(k, dim, 0, "float32"), _draw(rows, dim, 1, "float16")

    def make(block: int | None, candidates: int | None) -> Call:
        layout, search = _search(k, block, candidates)
        return compile_call(search, _place(layout, centers), x)

    makers = {name: functools.partial(make, *way) for name, way in _list_ways(session).items()}
    bound = session.bound(2.0 * rows * k * dim, 2.0 * k * dim)
    return measure_turns(session, makers, bound, PRODUCTS)
