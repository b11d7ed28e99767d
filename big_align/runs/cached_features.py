"""Features of locked towers, computed once before training and then read instead of inputs."""

import copy
import json
import pathlib
from collections.abc import Collection
from typing import Any

import jax
import numpy as np
import optax
from flax import traverse_util

from big_align.config.components.signatures import advise, make
from big_align.config.components.transforms import check_repeatable, shape_of_image
from big_align.core.digests import fingerprint
from big_align.core.errors import ConfigError
from big_align.core.nodes import Node
from big_align.core.types import Objective
from big_align.data.examples import Source
from big_align.data.loading.settings import CachedFeatures
from big_align.data.precomputed.shard_files import INDEX
from big_align.data.text.shortening import TRUNCATE
from big_align.evaluators.embedder import Embedder
from big_align.objectives.parts.encoders import FEATURES
from big_align.parallel.distributed import agreement
from big_align.parallel.meshes import make_mesh, replicated
from big_align.runs import build, dataset
from big_align.runs.embedding.embed_captions import embed_captions
from big_align.runs.embedding.embed_source import SourceEncoder, digest_weights, embed_source
from big_align.runs.initial_weights import check_frozen, read_initial_weights
from big_align.training.state import describe_state

TEXT_ARGUMENTS = ("caption", "caption_lines", "language")
"""Arguments of a source that name its texts."""
FOLDER = "features"  # folder of a workdir that holds the features, unless the config names another


def read_settings(config: Node) -> CachedFeatures:
    """Reads `config.cached_features`."""
    return make(CachedFeatures, config.get("cached_features") or {}, "config.cached_features")


def describe_example(config: Node, tokenizer: Any, objective: Objective) -> dict[str, np.ndarray]:
    """Returns one row of a training batch, with its precomputed fields."""
    example = build.example_batch(config, tokenizer)
    for name, shape in objective.describe_fields().items():
        example[name] = np.full((1, *shape), -1, np.int32)
    cached = read_settings(config).towers
    for field, tower in FEATURES.items():
        if tower in cached or (config["data"].get("precomputed") or {}).get(field):
            width = getattr(objective.model, tower).output_dim
            several = example["text"].shape[1:-1] or (1,) if tower == "text" else ()
            example[field] = np.zeros((1, *several, width), np.float32)
    if "image_embedding" in example:
        del example["image"]
    return example


def check_towers(config: Node, frozen: Collection[str]) -> None:
    """Checks that features can replace the inputs of the towers, without reading anything."""
    towers = read_settings(config).towers
    where = "config.cached_features.towers"
    for tower in towers:
        if f"model/{tower}" not in frozen:
            raise ConfigError(
                f"{where} has {tower!r}, a tower that is trained: its features change"
                f"{advise('config.model', locked=(tower,))}"
            )
    if towers and config["data"].get("pipeline"):
        raise ConfigError(f"{where}: config.data.pipeline makes its own batches; set it to None")
    _check_whole_texts(config, towers)
    mixing = config.get("mixing") or {}
    mixes = mixing.get("mixup_alpha") or mixing.get("cutmix_alpha")
    if "image" in towers and mixes:
        raise ConfigError(f"{where} has 'image', whose pixels config.mixing would mix: set it to 0")
    for place, node in dataset.part_nodes(config).values() if mixes else ():
        if (node.get("precomputed") or {}).get("image_embedding"):
            raise ConfigError(
                f"{place}.precomputed.image_embedding stands for images, whose pixels "
                "config.mixing would mix: leave one of them out"
            )
    for place, node in dataset.part_nodes(config).values() if towers else ():
        if "image" in towers:
            try:
                check_repeatable(node["transform"], f"{place}.transform")
            except ConfigError as error:
                raise ConfigError(f"{error}, or leave {where} without 'image'") from error
            if (node.get("views_per_image") or 1) > 1:
                raise ConfigError(f"{place}.views_per_image must be 1 where {where} has 'image'")
        if "text" in towers and (node.get("classes") or node.get("captions_per_image") == 0):
            raise ConfigError(f"{where} has 'text', but {place} has no captions: leave it out")


def _check_whole_texts(config: Node, towers: Collection[str]) -> None:
    """Refuses features of texts of which training is to read another part at every visit."""
    if (way := config["tokenizer"].get("shorten") or TRUNCATE) == TRUNCATE:
        return
    places = ["config.cached_features.towers"] if "text" in towers else []
    places += [
        f"{place}.precomputed.text_embedding"
        for place, node in dataset.part_nodes(config).values()
        if (node.get("precomputed") or {}).get("text_embedding")
    ]
    for place in places:
        raise ConfigError(
            f"config.tokenizer.shorten = {way!r} shortens texts as they are read, and {place} has "
            f"features of truncated ones{advise('config.tokenizer', shorten=TRUNCATE)}"
        )


def cache_features(config: Any, workdir: str) -> Any:
    """Computes the features of locked towers that do not exist yet.

    The name of a folder is a digest of the weights, image operations, tokenizer and source, so runs
    that share all of these also share the features. Returns the config of a run that reads them as
    precomputed fields.
    """
    settings = read_settings(config)
    if not settings.towers:
        return config
    root = pathlib.Path(settings.folder or pathlib.Path(workdir, FOLDER))
    towers = LockedTowers(config, settings.dtype)
    fed, made = copy.deepcopy(config), {}
    with fed.unlocked():
        for name, part in dataset.read_parts(config).items():
            folders = {
                field: towers.embed(tower, part, root)
                for field, tower in FEATURES.items()
                if tower in settings.towers
            }
            node = fed.data.mixture[name] if config.data.get("mixture") else fed.data
            node.precomputed = part.precomputed | folders
            made |= {f"{part.where}.{k}": pathlib.Path(x).name for k, x in folders.items()}
    # Not a collective, which gives up after half a minute on CPUs: some have more to compute.
    agreement.gather("features are computed", None)
    agreement.check_inputs("features", lambda: made)
    return fed


class LockedTowers:
    """The locked towers of a config with their weights, on the devices of this process."""

    def __init__(self, config: Any, dtype: str):
        self._config, self._dtype = config, dtype
        self._tokenizer = build.build_tokenizer(config)
        mesh = make_mesh(1, jax.local_devices())
        objective = build.build_objective(config, mesh, self._tokenizer)
        example = build.example_batch(config, self._tokenizer)
        shapes = describe_state(objective, optax.identity(), example, mesh)[0].weight_shapes
        self._weights, _ = read_initial_weights(shapes, config.init)
        check_frozen(objective.frozen, shapes, self._weights)
        tree = traverse_util.unflatten_dict(self._weights, sep="/")
        placed = jax.device_put(tree, replicated(mesh))
        rows = config.evaluate_batch_size * jax.local_device_count() // jax.device_count()
        self._embedder = Embedder(objective, mesh, rows)
        self._embedder.use({"model": placed.pop("params")}, placed)
        self._model = objective.model

    def embed(self, tower: str, part: dataset.Part, root: pathlib.Path) -> str:
        """Embeds the examples of a part of the data; returns the folder of the features."""
        source = dataset.open_source(part)
        made_by = self._describe(tower, part, source)
        kept = json.dumps([made_by, self._dtype], sort_keys=True, default=str)
        folder = root / f"{tower}-{fingerprint(kept, 12)}"
        broken = part.loader.get("max_broken_fraction", 0.01)
        dim = getattr(self._model, tower).output_dim
        if jax.process_index() == 0 and not (folder / INDEX).is_file():
            print(f"{tower} features of {int(source.shard_sizes.sum())} examples go to {folder}")
        if tower == "image":
            transform = part.loader["transform"]
            shape = shape_of_image(transform, f"{part.where}.transform")
            encoder = SourceEncoder(
                self._embedder, shape, transform, "features", dim, made_by["weights"]
            )
            embed_source(encoder, source, folder, self._dtype, made_by, broken)
        else:
            embed_captions(
                self._embedder, self._tokenizer, dim, source, folder, self._dtype, made_by, broken
            )
        return str(folder)

    def _describe(self, tower: str, part: dataset.Part, source: Source) -> dict[str, Any]:
        """Returns everything that the features of a tower depend on.

        Those of images do not depend on the texts that are read beside them, but for examples that
        a source leaves out because they have none.
        """
        below = {k: x for k, x in self._weights.items() if k.split("/")[1] == tower}
        described = {
            "source": part.source,
            "hold_out": part.loader.get("hold_out") or 0.0,
            "tower": self._config.model[tower].to_dict(),
            "weights": digest_weights(below),
        }
        if tower == "text":
            return described | {"tokenizer": self._tokenizer.fingerprint, "what": "features"}
        colors = {"mean": self._model.image_mean, "std": self._model.image_std}
        images = {k: x for k, x in part.source.items() if k not in TEXT_ARGUMENTS}
        sizes = [int(size) for size in source.shard_sizes]
        described |= {"source": images, "sizes": sizes, "colors": colors}
        return described | {"transform": part.loader["transform"]}
