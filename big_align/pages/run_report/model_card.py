"""The card of an exported model: what a run says of it, and how others load it, in Markdown."""

import json
import pathlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from big_align.core.errors import UserError, put_in_a_line
from big_align.pages.rendering import format_number
from big_align.pages.run_report.card_metadata import find_sources, write_metadata
from big_align.pages.run_report.run_record import RunRecord, read_record
from big_align.training.logs.directions import CHANCE
from big_align.weights.formats.pretrained import Pretrained

LIBRARIES = {"sentence_transformers": "sentence-transformers", "jax_export": "jax"}
TASKS = {"dual": "zero-shot-image-classification", "image": "image-feature-extraction"}
"""What the hub calls the uses of a model; that of a text tower is sentence similarity."""
LOADING = {
    "open_clip": 'open_clip.create_model_and_transforms("hf-hub:{name}")',
    "timm": 'timm.create_model("hf-hub:{name}", pretrained=True)',
    "transformers": 'transformers.AutoModel.from_pretrained("{name}")',
    "sentence_transformers": 'sentence_transformers.SentenceTransformer("{name}")',
    "jax_export": 'huggingface_hub.snapshot_download("{name}")  # programs, and their weights',
    "big_align": 'big_align.load("hf-hub:{name}")',
}
USES = {
    "dual": "For finding images by texts and texts by images, naming images by classes in words, "
    "and as features.",
    "image": "For features of images: probes, nearest neighbors, clusters, and further training.",
}
TEXT_USE = "For embeddings of texts: search, nearest neighbors, and further training."
LIMITS = (
    "It knows what its training data show, in their languages and with their errors and biases. "
    "How it treats people of different groups was not measured.",
    "Cosines rank; they are no probabilities, and a threshold of one model means nothing for "
    "another.",
    "On other data than those of the numbers here it is worse or better: measure it before use "
    "(`big-align benchmark`).",
)
FILL_IN = (
    "<!-- The owner fills in: the license above; what the training data are, whose, and under "
    "which terms; uses that are out of scope; whom to ask. -->"
)
LONGEST = 80  # characters of a value
PRIVATE = ("path", "data", "data_dir", "images", "index_dir")
"""Fields of sources that say where files lie on the machines of the run."""


def write_card(name: str, format: str, pretrained: Pretrained, facts: str) -> str:
    """Returns the card of an export, as a hub shows it; paths of the run are not in it.

    Args:
      name: of the repository or the folder.
      format: of `weights.save`.
      pretrained: what is exported.
      facts: the model in one line.
    """
    task = TASKS.get(pretrained.kind, "sentence-similarity")
    record, step = _read_run(pretrained)
    evaluations = record.evaluations.items() if record else ()
    numbers = {k: dict(values)[step] for k, values in evaluations if step in dict(values)}
    measured = {k: x for k, x in numbers.items() if not k.endswith(CHANCE)}
    parts = [
        write_metadata(name, LIBRARIES.get(format, format), task, record, measured),
        f"# {name.rpartition('/')[2]}",
        f"{facts[:1].upper()}{facts[1:]}. Exported by big_align.",
        "## Use",
        "\n".join(["```python", *_list_loading(name, format), "```"]),
        "## Intended use and limits",
        "\n".join(f"- {line}" for line in (USES.get(pretrained.kind, TEXT_USE), *LIMITS)),
        FILL_IN,
        *(_describe_run(record, step, numbers) if record else ()),
    ]
    return "\n\n".join(parts) + "\n"


def _read_run(pretrained: Pretrained) -> tuple[RunRecord | None, int]:
    """Returns what the workdir of a checkpoint says, if the model is of one, and its step."""
    if not pretrained.checkpoint:
        return None, 0
    checkpoint = pathlib.Path(pretrained.checkpoint)
    try:
        return read_record(str(checkpoint.parent.parent)), int(checkpoint.name)
    except UserError:  # the checkpoints are elsewhere (config.checkpoint.folder)
        return None, 0


def _list_loading(name: str, format: str) -> list[str]:
    name = name if "/" in name else f"OWNER/{name}"
    module = LOADING[format].partition(".")[0]
    lines = [f"import {module}", "", f"model = {LOADING[format].format(name=name)}"]
    readable = format in ("open_clip", "timm", "transformers")
    ours = f'# or: big_align.load("hf-hub:{name}")'
    return [*lines, ours] if readable else lines


def _describe_run(record: RunRecord, step: int, numbers: Mapping[str, float]) -> Iterator[str]:
    """Yields how a run trained a model, and what was measured of it, with what is by chance."""
    yield "## Training"
    yield "\n".join(f"- {line}" for line in _list_training(record, step))
    if not numbers:
        return
    yield "## Evaluation"
    yield f"Of the exported state, at step {step:,}."
    named = dict.fromkeys(name.partition("/")[0] for name in numbers)
    yield "\n".join(_list_evaluators(record, named))
    rows = [
        f"| {name} | {format_number(value)} | {'' if x is None else format_number(x)} |"
        for name, value in numbers.items()
        if not name.endswith(CHANCE)
        for x in [numbers.get(f"{name}{CHANCE}")]
    ]
    yield "\n".join(["| number | value | by chance |", "|---|---|---|", *rows])


def _list_training(record: RunRecord, step: int) -> Iterator[str]:
    config = record.config
    objective = dict(config.get("objective") or {})
    yield f"objective: {_show(objective.pop('name', '?'))}{_list_fields(objective)}"
    batch = config.get("batch_size")
    total = f" of {record.total_steps:,}" if record.total_steps != step else ""
    yield f"steps: {step:,}{total}, with {batch} examples each"
    if count := _count_examples(record).get("training"):
        yield f"training examples: {count:,}"
    for source in find_sources(config):
        yield f"training data{_list_fields({'source': source})}"
    for part in ("all", "image", "text"):
        path = str((config.get("init") or {}).get(part) or "")
        if path.startswith(("hf-hub:", "package:")):
            yield f"started from ({part}): `{path}`"
    for field in ("optimizer", "schedule"):
        node = dict(config.get(field) or {})
        name = f" {_show(node.pop('name'))}" if "name" in node else ""
        yield f"{field}:{name}{_list_fields(node)}"


def _list_evaluators(record: RunRecord, names: Iterable[str]) -> Iterator[str]:
    """Yields each evaluator with its settings and the number of examples, its candidates."""
    counts, nodes = _count_examples(record), record.config.get("evaluators") or {}
    for name in names:
        node = dict(nodes.get(name) or {})
        count = f", {counts[name]:,} examples" if counts.get(name) else ""
        yield f"- `{name}`: {_show(node.pop('name', 'benchmark'))}{count}{_list_fields(node)}"


def _count_examples(record: RunRecord) -> Mapping[str, Any]:
    return record.last_start.get("examples") or {}


def _list_fields(node: Mapping[str, Any]) -> str:
    """Lists fields that are set, of sources too, without the places of files."""
    told = []
    for name, value in node.items():
        if isinstance(value, Mapping):
            inner = {k: v for k, v in value.items() if k not in PRIVATE and v not in (None, "")}
            value = ", ".join(f"{k} {_show(v)}" for k, v in inner.items())
            told += [f"{name} ({value})"] if value else []
        elif name not in PRIVATE and value not in (None, "", [], {}):
            told.append(f"{name} {_show(value)}")
    return f" ({'; '.join(told)})" if told else ""


def _show(value: Any) -> str:
    """Returns a value of a config in one line, or the beginning of a long one."""
    text = put_in_a_line(value if isinstance(value, str) else json.dumps(value))
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."
