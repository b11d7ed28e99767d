"""Names, transposes and splits between our parameters and another library's, in both directions.

A table is a list of rules, each for a module: our path, their name, and the kind of layer. A kind
lists the arrays of such a layer and how their axes are ordered on either side. So a table is data
that can be read at a glance; `correspond` turns it into one entry per array of a model, which
`to_ours` and `to_theirs` follow.
"""

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from big_align.core.errors import WeightsMismatch


class Rule(NamedTuple):
    """A module on both sides.

    Args:
      ours: its path in our tree. `{n}` is the number of a block (two digits), `{s}` a stage, and
        `(a,b)` several modules whose arrays are concatenated in one of theirs.
      theirs: its name there. `{n}` as above but in plain digits, `{s}` and `{s1}` the stage counted
        from 0 and from 1, `{i}` the block's number within its stage.
      kind: a name in `KINDS`.
      stage: the only stage whose blocks the rule is for; None for all.
    """

    ours: str
    theirs: str
    kind: str
    stage: int | None = None


class Reorder(NamedTuple):
    """How an array, or a piece of it, is turned into ours and back."""

    to_ours: Callable[[np.ndarray], np.ndarray]
    to_theirs: Callable[[np.ndarray], np.ndarray]


def _patches_to_convolution(kernel: np.ndarray) -> np.ndarray:
    size = int(np.sqrt(kernel.shape[0] // 3))
    return kernel.reshape(size, size, 3, -1).transpose(3, 2, 0, 1)


REORDERS = {
    "same": Reorder(lambda w: w, lambda w: w),
    "transpose": Reorder(lambda w: w.T, lambda w: w.T),
    "convolution": Reorder(lambda w: w.transpose(2, 3, 1, 0), lambda w: w.transpose(3, 2, 0, 1)),
    "pointwise": Reorder(lambda w: w[:, :, 0, 0].T, lambda w: w.T[:, :, None, None]),
    "patches": Reorder(
        lambda w: w.transpose(2, 3, 1, 0).reshape(-1, len(w)), _patches_to_convolution
    ),
    "flat": Reorder(np.ravel, lambda w: w[None, None]),
    "first": Reorder(lambda w: w[0], lambda w: w[None]),
    # Ours have the grid of the patches, theirs only its rows one after another.
    "grid": Reorder(lambda w: w, lambda w: w.reshape(-1, w.shape[-1])),
    "flat grid": Reorder(lambda w: w, lambda w: w.reshape(-1, w.shape[-1])),
    # Texts have one segment; the row of the second one is written as zeros.
    "first of two": Reorder(lambda w: w[0], lambda w: np.stack([w, np.zeros_like(w)])),
}

BIAS = ("bias", "bias", "same")
NORM = (("scale", "weight", "same"), BIAS)

KINDS = {  # for each array: our leaf, their leaf, and what reorders it
    "array": (("", "", "same"),),
    "linear": (("kernel", "weight", "transpose"), BIAS),
    "bare linear": (("kernel", "weight", "transpose"),),
    "matrix": (("kernel", "", "same"),),
    "fused linear": (
        ("kernel", "in_proj_weight", "transpose"),
        ("bias", "in_proj_bias", "same"),
    ),
    "embedding": (("embedding", "weight", "same"),),
    "conv": (("kernel", "weight", "convolution"),),
    "depthwise": (("", "weight", "convolution"),),
    "pointwise": (("kernel", "weight", "pointwise"),),
    "biased pointwise": (("kernel", "weight", "pointwise"), BIAS),
    "patches": (("kernel", "weight", "patches"), BIAS),
    "bare patches": (("kernel", "weight", "patches"),),
    "flat": (("", "", "flat"),),
    "grid": (("", "", "grid"),),
    "flat grid": (("", "", "flat grid"),),
    "first row": (("", "", "first of two"),),
    "only row": (("", "", "first"),),
    "norm": NORM,
    "batch norm": (
        *NORM,
        ("mean", "running_mean", "same"),
        ("var", "running_var", "same"),
    ),
}

RUNNING = ("mean", "var")
"""Leaves that are in `batch_stats`."""


class Entry(NamedTuple):
    """An array of theirs, and the arrays of ours that correspond to it.

    Several are concatenated along the first axis of theirs, after the first of "flat grid".
    """

    ours: tuple[str, ...]
    theirs: str
    reorder: str  # a name in `REORDERS`, applied to each piece


def list_block(
    at: str,
    norms: Sequence[str],
    heads: Sequence[str],
    layers: Sequence[str],
    kind: str = "linear",
) -> list[Rule]:
    """Returns the rules of the blocks of a transformer.

    Args:
      at: what the names of a block begin with there, as in "encoder.layer.{n}.".
      norms: the norms of attention and MLP.
      heads: the layers for query, key and value, or one that has all three.
      layers: the output of attention, and both layers of the MLP.
      kind: of the layers for query, key and value.
    """
    inputs = ("query", "key", "value") if len(heads) == 3 else ("(query,key,value)",)
    ours = {"attention_norm": "norm", "mlp_norm": "norm"}
    ours |= {f"attention/{name}": kind for name in inputs}
    ours |= dict.fromkeys(("attention/out", "mlp/up", "mlp/down"), "linear")
    theirs = (*norms, *heads, *layers)
    return [
        Rule(f"block_{{n}}/{name}", at + there, of)
        for (name, of), there in zip(ours.items(), theirs, strict=True)
    ]


def prefix_table(table: Sequence[Rule], ours: str, theirs: str) -> list[Rule]:
    """Puts a table's modules below others, as with a tower in a dual encoder."""
    return [rule._replace(ours=ours + rule.ours, theirs=theirs + rule.theirs) for rule in table]


def correspond(
    table: Sequence[Rule], paths: Collection[str], depths: Mapping[str, Sequence[int]]
) -> list[Entry]:
    """Finds the counterpart of every array of a model: an entry per array of theirs.

    Args:
      table: rules; if there are several for an array, the first counts.
      paths: our arrays, "params/..." and "batch_stats/..."; each is in one entry.
      depths: blocks in each stage, by the prefix of the modules that they are for: "" for a tower
        by itself, "image/" and "text/" in a dual encoder.
    """
    left, entries = set(paths), []
    for rule in table:
        for ours, theirs in _expand(rule, depths):
            modules = _alternatives(ours)
            for our_leaf, their_leaf, reorder in KINDS[rule.kind]:
                collection = "batch_stats" if our_leaf in RUNNING else "params"
                wanted = tuple(
                    "/".join(filter(None, (collection, module, our_leaf))) for module in modules
                )
                if left.issuperset(wanted):
                    left.difference_update(wanted)
                    name = ".".join(filter(None, (theirs, their_leaf)))
                    entries.append(Entry(wanted, name, reorder))
    if left:
        raise WeightsMismatch(f"no counterpart in this format for: {', '.join(sorted(left))}")
    return entries


def _expand(rule: Rule, depths: Mapping[str, Sequence[int]]) -> list[tuple[str, str]]:
    """Fills in the numbers of stages and blocks."""
    stages = next((d for start, d in depths.items() if rule.ours.startswith(start)), ())
    both = rule.ours + rule.theirs
    if "{n}" not in both and "{i}" not in both and "{s}" not in both:
        return [(rule.ours, rule.theirs)]
    pairs, number = [], 0
    for stage, depth in enumerate(stages):
        blocks = range(depth) if "{n}" in both or "{i}" in both else range(1)
        for i in blocks:
            if rule.stage in (None, stage):
                numbers = dict(s=stage, s1=stage + 1, i=i)
                ours = rule.ours.format(n=f"{number:02d}", **numbers)
                pairs.append((ours, rule.theirs.format(n=number, **numbers)))
            number += 1
    return pairs


def _alternatives(path: str) -> list[str]:
    """Turns "a/(b,c)" into "a/b" and "a/c"."""
    match = re.fullmatch(r"(.*)\((.*)\)(.*)", path)
    if not match:
        return [path]
    return [match[1] + choice + match[3] for choice in match[2].split(",")]


def to_ours(
    entry: Entry, array: np.ndarray, shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, np.ndarray]:
    """Turns an array of theirs into arrays of ours, by path.

    Of the shapes that ours must have, positions of patches are made to fit, whose grid theirs lack.
    """
    if entry.reorder in ("grid", "flat grid"):
        return _split_positions(entry, array, shapes)
    reorder = REORDERS[entry.reorder].to_ours
    pieces = np.split(array, len(entry.ours)) if len(entry.ours) > 1 else [array]
    return {
        path: np.ascontiguousarray(reorder(piece))
        for path, piece in zip(entry.ours, pieces, strict=True)
    }


def _split_positions(
    entry: Entry, array: np.ndarray, shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, np.ndarray]:
    """Splits a table of positions into that of the class token, if there is one, and the grid."""
    rows = array[0] if entry.reorder == "flat grid" else array
    *leading, grid = entry.ours
    pieces = {path: rows[number] for number, path in enumerate(leading)}
    rest = rows[len(leading) :]
    fits = rest.size == math.prod(shapes[grid])
    return pieces | {grid: np.ascontiguousarray(rest.reshape(shapes[grid]) if fits else rest)}


def to_theirs(entry: Entry, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    """Turns our arrays, by path, into one of theirs."""
    reorder = REORDERS[entry.reorder].to_theirs
    pieces = [reorder(np.asarray(arrays[path])) for path in entry.ours]
    whole = np.ascontiguousarray(np.concatenate(pieces) if len(pieces) > 1 else pieces[0])
    return whole[None] if entry.reorder == "flat grid" else whole
