"""The card of an exported model: what a run says of it, and how others load it, in Markdown."""

import json
import pathlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from big_align.core.errors import UserError, put_in_a_line
from big_align.pages.rendering import format_number
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
    kind = TASKS.get(pretrained.kind, "sentence-similarity")
    tags = "\n".join(f"- {tag}" for tag in ("big_align", "image-text"))
    head = f"library_name: {LIBRARIES.get(format, format)}\npipeline_tag: {kind}\ntags:\n{tags}"
    parts = [
        f"---\n{head}\n# license: the license of the weights, which their owner fills in\n---",
        f"# {name.rpartition('/')[2]}",
        f"{facts[:1].upper()}{facts[1:]}. Exported by big_align.",
        *_describe_run(pretrained),
        "## Use",
        "\n".join(["```python", *_list_loading(name, format), "```"]),
    ]
    return "\n\n".join(parts) + "\n"


def _list_loading(name: str, format: str) -> list[str]:
    name = name if "/" in name else f"OWNER/{name}"
    module = LOADING[format].partition(".")[0]
    lines = [f"import {module}", "", f"model = {LOADING[format].format(name=name)}"]
    readable = format in ("open_clip", "timm", "transformers")
    ours = f'# or: big_align.load("hf-hub:{name}")'
    return [*lines, ours] if readable else lines


def _describe_run(pretrained: Pretrained) -> Iterator[str]:
    """Yields what the workdir of a checkpoint says, if the model is of one."""
    if not pretrained.checkpoint:
        return
    checkpoint = pathlib.Path(pretrained.checkpoint)
    try:
        record = read_record(str(checkpoint.parent.parent))
    except UserError:  # the checkpoints are elsewhere (config.checkpoint.folder)
        return
    step = int(checkpoint.name)
    yield "## Training"
    yield "\n".join(f"- {line}" for line in _list_training(record, step))
    numbers = {
        k: dict(values)[step] for k, values in record.evaluations.items() if step in dict(values)
    }
    if numbers:
        yield "## Evaluation"
        yield f"Of the exported state, at step {step:,}."
        named = dict.fromkeys(name.partition("/")[0] for name in numbers)
        yield "\n".join(_list_evaluators(record, named))
        chances = {name: numbers.pop(f"{name}{CHANCE}", None) for name in list(numbers)}
        rows = [
            f"| {name} | {format_number(value)} | {'' if x is None else format_number(x)} |"
            for name, value in numbers.items()
            for x in [chances[name]]
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
