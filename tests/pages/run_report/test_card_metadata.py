"""The front matter of a card is YAML that a hub reads, whatever the names of a run are."""

import math

import yaml

from big_align.pages.run_report.card_metadata import write_metadata
from big_align.pages.run_report.run_record import RunRecord

PUBLIC = {"name": "huggingface", "path": "owner/pairs", "split": "train"}
LOCAL = {"name": "tar", "path": "/home/somebody/*.tar"}


def make_record(init, before=None, **config):
    return RunRecord("run", {"init": init, **config}, [], {}, {}, {}, {}, before=before)


def test_what_a_model_is_made_of_is_named_without_the_paths_of_a_machine():
    first = make_record({"text": "hf-hub:owner/bert@main", "image": "package:own/model"})
    data = {"mixture": {"a": {"source": PUBLIC}, "b": {"source": LOCAL}, "c": {"source": PUBLIC}}}
    record = make_record({"all": "/home/somebody/first"}, first, data=data)
    text = write_metadata("me/own", "big_align", "image-feature-extraction", record, {})
    head = yaml.safe_load(text.strip("-"))
    assert head["base_model"] == ["owner/bert"] and head["datasets"] == ["owner/pairs"]
    assert "somebody" not in text and "model-index" not in head and "license" not in head


def test_results_are_those_that_were_measured():
    evaluators = {"a: [b]": {"name": "knn", "source": PUBLIC}, "c": {"name": "own:Evaluator"}}
    record = make_record({}, evaluators=evaluators)
    numbers = {"a: [b]/r@5": 0.5, "c/x": math.nan, "d/y": 2.0}
    head = yaml.safe_load(write_metadata("a/no", "timm", "other", record, numbers).strip("-"))
    (model,) = head["model-index"]
    assert model["name"] == "no"
    assert model["results"] == [
        {
            "task": {"type": "image-classification"},
            "dataset": {"name": "a: [b]", "type": "owner/pairs", "split": "train"},
            "metrics": [{"type": "r@5", "value": 0.5}],
        },
        {
            "task": {"type": "other"},
            "dataset": {"name": "d", "type": "d"},
            "metrics": [{"type": "y", "value": 2.0}],
        },
    ]
