"""Linear layers on features of locked towers, trained in seconds by the objective and step of runs.

What `main.py --config=configs/pretrained_flickr8k.py:frozen` trains, without what a run is besides:
features are computed once and stay in memory, and all steps are one program.
"""

import copy
import functools
from typing import Any, NamedTuple

import numpy as np

from experiments.training import Shared, Training

EPOCHS = 30
BATCH = 512
"""Pairs of a step, unless it is what an experiment varies."""
RECALLS = {"image to text": "image_to_text_r10", "text to image": "text_to_image_r10"}
"""Of `measure_layers`, those that tables have, by their titles."""


class Pairs(NamedTuple):
    """Features of photographs with their texts."""

    image: np.ndarray  # [n f]
    text: np.ndarray  # [m g]
    texts: np.ndarray  # of each photograph, [n k]; the first `counts` of a row are real
    counts: np.ndarray  # [n], at least 1


def get_base(split: str):
    """Returns the config that trains on what comes before a split, which it looks at."""
    from big_align.configs import pretrained_flickr8k

    return pretrained_flickr8k.get_config("frozen,dev" if split == "dev" else "frozen")


@functools.cache
def find_features(split: str, seen: bool, folder: str) -> tuple[str, str]:
    """Returns the folders of features of photographs and of captions; computes what is not there.

    The split, "dev" or "test", is evaluated; features are of what comes before it, if it is what is
    seen in training.
    """
    from big_align.runs.cached_features import cache_features

    config = get_base(split)
    with config.unlocked():
        config.cached_features.folder = folder
        if not seen:
            config.data.source = copy.deepcopy(config.evaluators.retrieval.source)
    found = cache_features(config, folder).data.precomputed
    return found["image_embedding"], found["text_embedding"]


@functools.cache
def read_features(images: str, captions: str) -> Pairs:
    """Reads the features in two folders; every photograph has as many captions."""
    from big_align.data.precomputed.embedding_files import CaptionFolder, EmbeddingFolder

    folder = EmbeddingFolder(images)
    image = np.array(folder.read(0, folder.count))
    folder = CaptionFolder(captions)
    text = np.concatenate([folder.array(shard) for shard in folder.shards])
    assert text.any(axis=-1).all(), "a photograph has fewer captions than the others"
    count, each = text.shape[:2]
    texts = np.arange(count * each, dtype=np.int32).reshape(count, each)
    return Pairs(image, text.reshape(count * each, -1), texts, np.full(count, each, np.int32))


def train_layers(
    split: str,
    pairs: Pairs,
    steps: int,
    seed: int,
    rate: float,
    batch: int = BATCH,
    negatives: float = 1.0,
    dimension: int = 512,
    temperature: float = 0.0,
) -> tuple[dict[str, dict[str, np.ndarray]], float]:
    """Trains the layers behind both towers by ALIGN's loss.

    A photograph comes with one of its texts, drawn anew each time. The split is the one that is
    evaluated, and the schedule covers all steps. A temperature of 0 is learned, starting from 0.07.
    Returns the layers by name, averaged over the last steps, and the temperature in the end.
    """
    import jax

    from big_align.config.components.models import build_model
    from big_align.objectives.align import Align
    from big_align.parallel.meshes import make_mesh
    from big_align.runs.build import build_optimizer
    from big_align.training.step import make_train_step

    config = get_base(split)
    with config.unlocked():
        config.total_steps = steps
        config.schedule.learning_rate = rate
        config.schedule.warmup_steps = steps // 12
        config.optimizer.frozen = ()  # the towers are not there at all
        config.model.embedding_dim = dimension
    mesh = make_mesh(devices=jax.devices()[:1])
    objective = Align(
        build_model(config),
        mesh,
        temperature=temperature or 0.07,
        learn_temperature=not temperature,
        negative_fraction=negatives,
    )
    optimizer, _ = build_optimizer(config)
    # The average is over as many photographs, whatever the batch.
    step = make_train_step(objective, optimizer, mesh, average_decay=1 - 0.01 * batch / BATCH)

    def go_on(state, drawn):
        row, text = drawn
        fields = {"image_embedding": images[row], "text_embedding": texts[text][:, None]}
        fields |= {"text_mask": np.ones((batch, 1), bool), "mask": np.ones(batch, bool)}
        return step(state, fields)[0], None

    images, texts = jax.device_put((pairs.image, pairs.text))
    state = make_state(objective, optimizer, seed, config.tokenizer.length)
    run = jax.jit(lambda state, drawn: jax.lax.scan(go_on, state, drawn)[0])
    state = run(state, draw_pairs(pairs, batch, steps, seed))
    average = state.average[0]
    return jax.device_get(average["model"]), float(1 / objective.scale(average))


def prepare(shared: Shared) -> None:
    """Computes the features of both splits that are not there yet, by all cores."""
    for split in ("dev", "test"):
        for seen in (True, False):
            find_features(split, seen, str(shared.output / "features"))


def train(experiment: Any, training: Training) -> dict[str, float]:
    """Trains the layers of a row, whose changes are arguments of `train_layers`.

    Returns recalls by name, and the temperature in the end.
    """
    folder, settings = f"{training.output}/features", training.row.changes
    pairs = read_features(*find_features(training.split, True, folder))
    judged = read_features(*find_features(training.split, False, folder))
    steps = training.steps or round(EPOCHS * len(pairs.image) / settings["batch"])
    trained, last = train_layers(
        training.split, pairs, steps, training.seed, training.rate, **settings
    )
    return measure_layers(judged, trained) | {"temperature": last}


def draw_pairs(pairs: Pairs, batch: int, steps: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns which photograph with which text stands in each row of each step."""
    rng = np.random.default_rng(seed)
    count = len(pairs.image)
    epochs = -(-steps * batch // count)
    rows = np.concatenate([rng.permutation(count) for _ in range(epochs)])[: steps * batch]
    places = np.int32(rng.random(len(rows)) * pairs.counts[rows])
    shape = steps, batch
    return np.int32(rows.reshape(shape)), pairs.texts[rows, places].reshape(shape)


def make_state(objective, optimizer, seed: int, length: int):
    """Returns the state that a run begins with, without the towers, which features stand for."""
    import jax
    import jax.numpy as jnp
    from flax.core import meta

    from big_align.training.state import TrainState

    example = {"image": jnp.zeros((1, 64, 64, 3), jnp.uint8), "mask": jnp.ones(1, bool)}
    example["text"] = jnp.zeros((1, length), jnp.int32)
    example["text_mask"] = jnp.ones((1, length), bool)

    def create() -> TrainState:
        first, rng = jax.random.split(jax.random.PRNGKey(seed))
        params = dict(meta.unbox(objective.init(first, example)[0]))
        model = params["model"]
        params["model"] = {name: model[name] for name in ("project_image", "project_text")}
        return TrainState(
            step=jnp.int32(0),
            params=params,
            model_state={},
            opt_state=optimizer.init(params),
            rng=rng,
            average=(params, {}),
            tables={},
        )

    return jax.jit(create)()


def measure_layers(pairs: Pairs, layers: dict[str, dict[str, np.ndarray]]) -> dict[str, float]:
    """Returns the recalls of the evaluator `retrieval`, of pairs that nobody has trained on."""
    from big_align.evaluators.exhibits import retrieval
    from big_align.evaluators.retrieval import measure_recalls

    count = len(pairs.image)
    zimg = project(pairs.image, layers["project_image"])
    ztxt = project(pairs.text[pairs.texts.ravel()], layers["project_text"])
    owner = np.repeat(np.arange(count), pairs.texts.shape[1])
    shown = retrieval.Pairs(zimg, ztxt, [""] * len(ztxt), owner, np.arange(count))
    return measure_recalls(shown, ks=(1, 10))


def project(features: np.ndarray, layer: dict[str, np.ndarray]) -> np.ndarray:
    """Takes features through a linear layer to unit length."""
    values = features.astype(np.float32) @ layer["kernel"] + layer["bias"]
    return values / np.linalg.norm(values, axis=-1, keepdims=True)
