"""What scale, rate and loss do to cosines with centers: MLC's collapse, looked for in a stand-in.

    python benchmarks/cluster_scale.py             # about a minute on two idle cores

A perceptron learns 4000 points in 40 groups by 400 clusters, eight of them a point's own, from
scratch: 600 steps of 128, a tenth of the centers sampled as negatives, AdamW. A row is a loss (eq.
4, `mlc`, or eq. 5, `mlcd`), a scale, a peak learning rate, and which centers are negatives. Printed
are the mean cosines of points with their own centers and with the others, and of points with each
other: where the first two meet, or the last is near 1, all points look alike.

It is no photograph and no deep tower, so it tells what the losses may do and not what they will.
"""

import functools
import itertools
import pathlib
import sys
from collections.abc import Iterator

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks import measuring
from big_align.losses.cluster_discrimination import mlc_loss, mlcd_loss

POINTS, GROUPS, CENTERS, LABELS, INPUT, WIDTH, DIM = 4000, 40, 400, 8, 64, 128, 32
BATCH, STEPS, RATIO, SHOWN = 128, 600, 0.1, 1000
LOSSES = {"mlc": mlc_loss, "mlcd": mlcd_loss}
ROWS = ((64.0, 3e-3), (64.0, 1e-3), (16.0, 3e-3))


def make_data() -> tuple[jax.Array, jax.Array]:
    """Returns points and the nearest of some of them as their clusters."""
    rng = np.random.default_rng(0)
    middles = rng.normal(size=(GROUPS, INPUT))
    points = middles[rng.integers(0, GROUPS, POINTS)] + rng.normal(size=(POINTS, INPUT))
    unit = points / np.linalg.norm(points, axis=1, keepdims=True)
    cosines = unit @ unit[rng.choice(POINTS, CENTERS, replace=False)].T
    return jnp.float32(points), jnp.int32(np.argsort(-cosines, axis=1)[:, :LABELS])


def init(rng: jax.Array) -> dict:
    """Returns the weights of a perceptron of three hidden layers, and random centers."""
    *keys, last = jax.random.split(rng, 5)
    widths = [INPUT, WIDTH, WIDTH, WIDTH, DIM]
    sizes = zip(keys, widths, widths[1:], strict=False)
    layers = [jax.random.normal(key, (a, b)) * (2 / a) ** 0.5 for key, a, b in sizes]
    return {"layers": layers, "centers": jax.random.normal(last, (CENTERS, DIM)) / DIM**0.5}


def embed(params: dict, x: jax.Array) -> jax.Array:
    """Returns unit-length embeddings of points."""
    *hidden, last = params["layers"]
    for kernel in hidden:
        x = jax.nn.relu(x @ kernel)
    z = x @ last
    return z / jnp.linalg.norm(z, axis=1, keepdims=True)


@jax.jit
def measure(params: dict, points: jax.Array, labels: jax.Array) -> tuple[jax.Array, ...]:
    """Returns the mean cosines with own centers, with others, and among points."""
    z, centers = embed(params, points[:SHOWN]), params["centers"]
    cosine = z @ (centers / jnp.linalg.norm(centers, axis=1, keepdims=True)).T
    own = jnp.zeros(cosine.shape, bool).at[jnp.arange(SHOWN)[:, None], labels[:SHOWN]].set(True)
    return cosine.mean(where=own), cosine.mean(where=~own), (z @ z.T).mean()


def train(loss: str, scale: float, rate: float, negatives: str, data: tuple) -> dict:
    """Returns the parameters after training."""
    schedule = optax.warmup_cosine_decay_schedule(0, rate, 50, STEPS)
    optimizer = optax.adamw(schedule, weight_decay=0.1)
    options = {"scale": scale, "negatives": negatives}

    @jax.jit
    def step(params: dict, state: optax.OptState, rng: jax.Array) -> tuple:
        first, second = jax.random.split(rng)
        rows = jax.random.randint(first, (BATCH,), 0, POINTS)
        sampled = jax.random.choice(second, CENTERS, (round(RATIO * CENTERS),), replace=False)
        given = data[0][rows], data[1][rows]
        compare = functools.partial(LOSSES[loss], labels=given[1], sampled=sampled, **options)
        grads = jax.grad(lambda p: compare(embed(p, given[0]), p["centers"]))(params)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    params = init(jax.random.key(0))
    state = optimizer.init(params)
    for number in range(STEPS):
        params, state = step(params, state, jax.random.fold_in(jax.random.key(9), number))
    return params


def main() -> None:
    """Trains each row and prints it."""
    measuring.make_parser(__doc__).parse_args()
    data = make_data()

    def train_rows() -> Iterator[tuple]:
        yield "start", "", "", "", *map(float, measure(init(jax.random.key(0)), *data))
        for (scale, rate), loss, negatives in itertools.product(ROWS, LOSSES, ("sampled", "drawn")):
            params = train(loss, scale, rate, negatives, data)
            yield loss, scale, rate, negatives, *map(float, measure(params, *data))

    columns = "loss", "scale", "rate", "negatives", "own", "others", "points"
    measuring.print_table(columns, train_rows())


if __name__ == "__main__":
    main()
