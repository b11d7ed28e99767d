"""What a hub reads of a model's card: its task, what it is made of, and what was measured."""

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from big_align.pages.run_report.run_record import RunRecord

PACKAGE, HUB = "big_align", "hf-hub:"
TASKS = {
    "zero_shot": "zero-shot-image-classification",
    "retrieval": "image-text-retrieval",
    **dict.fromkeys(("linear_probe", "few_shot", "knn", "classification"), "image-classification"),
}
"""What the hub calls what evaluators measure; of others, what the model is for."""


def write_metadata(
    name: str, library: str, task: str, record: RunRecord | None, numbers: Mapping[str, float]
) -> str:
    """Returns the front matter of a card in YAML, of which JSON is a part; no license is in it.

    Args:
      name: of the repository or the folder.
      library: what opens the model, by the hub's name of it.
      task: what the model is for, by the hub's name of it.
      record: the run that trained it, if one did.
      numbers: what was measured of it, by `evaluator/name`.
    """
    fields: dict[str, Any] = {"library_name": library, "pipeline_tag": task}
    fields["tags"] = [PACKAGE, "image-text"]
    if record and (models := _list_models(record)):
        fields["base_model"] = models
    if record and (sets := list(dict.fromkeys(_list_sets(find_sources(record.config))))):
        fields["datasets"] = sets
    lines = [f"{field}: {json.dumps(value)}" for field, value in fields.items()]
    if record and numbers:
        lines += ["model-index:", f"- name: {json.dumps(name.rpartition('/')[2])}", "  results:"]
        lines += [f"  - {json.dumps(each)}" for each in _list_results(record, numbers, task)]
    lines.append("# license: the license of the weights, which their owner fills in")
    return "\n".join(["---", *lines, "---"])


def find_sources(config: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Returns the sources of the training data, one for each part of a mixture."""
    data = config.get("data") or {}
    parts = [data, *(data.get("mixture") or {}).values()]
    return [source for part in parts if (source := (part or {}).get("source"))]


def _list_models(record: RunRecord) -> list[str]:
    """Returns the repositories whose weights a run, or a stage before it, started from."""
    inits = [stage.config.get("init") or {} for stage in record.stages]
    named = [str(init.get(part) or "") for init in inits for part in ("all", "image", "text")]
    models = (path.removeprefix(HUB).partition("@")[0] for path in named if path.startswith(HUB))
    return list(dict.fromkeys(models))


def _list_sets(sources: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Yields the data sets of a hub that are among sources."""
    yield from (str(x.get("path")) for x in sources if x.get("name") == "huggingface")


def _list_results(
    record: RunRecord, numbers: Mapping[str, float], task: str
) -> Iterator[dict[str, Any]]:
    """Yields what each evaluator has measured, as a hub shows results."""
    nodes = record.config.get("evaluators") or {}
    for evaluator in dict.fromkeys(name.partition("/")[0] for name in numbers):
        node = dict(nodes.get(evaluator) or {})
        source = node.get("source") or {}
        data = {"name": evaluator, "type": next(_list_sets([source]), evaluator)}
        data |= {"split": source["split"]} if source.get("split") else {}
        metrics = [
            {"type": number, "value": value}
            for name, value in numbers.items()
            for owner, _, number in [name.partition("/")]
            if owner == evaluator and math.isfinite(value)
        ]
        if metrics:
            kind = TASKS.get(str(node.get("name")), task)
            yield {"task": {"type": kind}, "dataset": data, "metrics": metrics}
