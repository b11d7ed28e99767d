"""The fields of a config: the run's own in a table, those of components by their signatures."""

import re
from typing import NamedTuple

from ml_collections import ConfigDict

from big_align.config.components.docstrings import read_arguments
from big_align.config.components.signatures import list_kinds, list_settable
from big_align.config.places import find_target, in_run
from big_align.core.nodes import find_node


class Setting(NamedTuple):
    """What is known of a field."""

    kinds: tuple[type, ...]  # types that its value may have, beside None
    line: str  # what it is for


OWN = {
    "seed": (int, "random seed of weights, the order of examples, and augmentation"),
    "batch_size": (int, "examples per step, over all devices"),
    "total_steps": (int, "how many steps to train"),
    "microbatches": (int, "parts of a batch that are encoded one by one, to save memory"),
    "gradient_dtype": (str, "dtype of the sum of gradients over devices: float32 or bfloat16"),
    "average_decay": (float, "decay of the moving average of parameters, which is then evaluated"),
    "on_divergence": (str, "on a jump of loss or gradient: report, or rewind (go back, skip data)"),
    "log_every": (int, "steps between lines of metrics.jsonl"),
    "compilation_cache": (str, "a folder that keeps compiled programs for later runs"),
    "compiler_options": (dict, "options of XLA, by name"),
    "evaluate_every": (int, "steps between evaluations; there is one after the last step too"),
    "evaluate_batch_size": (int, "examples per batch of an evaluation, over all devices"),
    "checkpoint.every": (int, "steps between checkpoints; there is one after the last step too"),
    "data.classes": (str, "a class list of the package or a file: examples have labels"),
    "data.mixture.*.classes": (str, "a class list: the part's examples have labels"),
    "data.mixture.*.weight": (float, "the part's share of a batch, relative to the others"),
    "data.precomputed.clusters": (str, "a folder that big_align.tools.cluster wrote"),
    "data.precomputed.image_embedding": (str, "a folder that big_align.tools.embed wrote"),
    "data.precomputed.text_embedding": (str, "the same for text features, written by a run"),
    "data.tags.path": (str, "a list that big_align.tools.build_tags wrote; None: no tags"),
    "data.tags.max_tags": (int, "the most tags of an example's texts"),
    "data.tags.truth": (bool, "whether a batch also has the tags of all captions"),
    "init.all": (str, "weights to start from: a workdir, or a folder or file of weights"),
    "init.image": (str, "the same for the image tower alone"),
    "init.text": (str, "the same for the text tower alone"),
    "init.classifier": (str, "a workdir whose classifier of the same classes starts this run's"),
    "init.temperature": (str, "a model whose learned temperature starts this run's, or `all`'s"),
    "init.optimizer": (str, "kept: weights and moments as `first` trained them; None: fresh ones"),
    "init.centers": (str, "a folder of clusters whose centers the class centers start at"),
}
"""Fields that no component takes, by their place: their type, beside None, and what they are for.

`*` is any name.
"""


def describe_fields(config: ConfigDict, path: str) -> dict[str, Setting]:
    """Describes the fields of the node at a place, by name, but for those that are nodes."""
    node = find_node(config, path)
    target = find_target(config, path)
    settable = list_settable(target) if target is not None else {}
    lines = read_arguments(target) if target is not None else {}
    fields = {}
    for name in node:
        place = re.sub(r"^(data\.mixture)\.\w+", r"\1.*", in_run(f"{path}.{name}".lstrip(".")))
        if isinstance(node.get(name), ConfigDict) and place not in OWN:
            continue
        if place in OWN:
            kind, line = OWN[place]
            fields[name] = Setting((kind,), line)
        elif name in settable:
            kinds = tuple(list_kinds(settable[name].hint))
            fields[name] = Setting(kinds, lines.get(name, ""))
        else:
            fields[name] = Setting((str,) if name == "name" else (), lines.get(name, ""))
    return fields
