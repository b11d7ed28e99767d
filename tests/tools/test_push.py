"""Exports to a hub, which is a server on loopback: they are loaded back, with a card."""

import re

import huggingface_hub
import numpy as np
import pytest
import yaml

from big_align import weights
from big_align.config.overrides import load_config
from big_align.runs import train, workdir
from big_align.tools import convert
from tests import hub_server
from tests.run_main import ROOT


@pytest.fixture
def token(hub, monkeypatch, tmp_path):
    monkeypatch.setenv("HF_TOKEN", hub_server.TOKEN)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")


def push(path, output, *more):
    return convert.main([f"--input={path}", f"--output={output}", *more])


def assert_same(one, other):
    assert one.node == other.node and one.flat.keys() == other.flat.keys()
    for name, array in one.flat.items():
        np.testing.assert_array_equal(array, other.flat[name], err_msg=name)


FORMATS = [("hf-clip", name) for name in ("transformers", "open_clip", "big_align")]


@pytest.mark.parametrize("name, format", [*FORMATS, ("hf-vit", "timm")])
@pytest.mark.slow_repeats
def test_what_is_uploaded_is_loaded_back_equal(
    hub, token, reference_dir, tmp_path, capsys, name, format
):
    out = tmp_path / "out"
    given = f"--format={format}", "--push_to=somebody/model"
    if format == "timm":
        hub.add("owner/clip", reference_dir / "hf-clip")
        name, given = "owner/clip", (*given, "--part=image")
    source = reference_dir / name if format != "timm" else name
    assert push(source, out, *given) == 0
    repository = hub.repositories["model", "somebody/model"]
    commit = repository.refs["main"]
    assert f"hf-hub:somebody/model@{commit}, at {hub.url}" in capsys.readouterr().out
    assert repository.private and any("validate-yaml" in each.path for each in hub.log)
    assert set(repository.commits[commit]) == {path.name for path in out.iterdir()}
    loaded = weights.read("somebody/model")
    assert_same(loaded, weights.read(out))
    read_card(repository.commits[commit]["README.md"].decode())
    assert push(source, tmp_path / "again", *given) == 0  # a commit more
    assert len(repository.commits) >= 2


def read_card(text):
    """The front matter of a card, and its body."""
    head, body = re.fullmatch(r"---\n(.*?)\n---\n(.*)", text, re.DOTALL).groups()
    assert "# license: " in head
    return yaml.safe_load(head), body


@pytest.mark.slow
def test_the_card_of_a_run_says_how_it_was_trained_and_measured(hub, tmp_path, capsys):
    config = load_config(str(ROOT / "tests/tiny_config.py"), "--config.data.source.split=train")
    numbers = train.run(config, str(tmp_path / "run"))
    assert push(tmp_path / "run", tmp_path / "out", "--format=big_align") == 0
    text = (tmp_path / "out/README.md").read_text()
    huggingface_hub.ModelCard(text).validate()
    head, body = read_card(text)
    assert head["library_name"] == "big_align" and "license" not in head
    assert head["pipeline_tag"] == "zero-shot-image-classification"
    results = huggingface_hub.ModelCard(text).data.eval_results
    found = {f"{x.dataset_name}/{x.metric_type}": x.metric_value for x in results}
    assert found == {k: x for k, x in numbers.items() if not k.endswith("_chance")}
    assert {x.dataset_name: x.dataset_split for x in results} == {"digits": "test", "pairs": "test"}
    assert "## Intended use and limits" in body and "<!-- The owner fills in: the license" in body
    assert "- training data (source (name digits, split train))" in body
    assert "- objective: align (" in body and "temperature 0.2" in body
    assert "- steps: 8, with 16 examples each" in body
    starts = (tmp_path / "run/starts.jsonl").read_text()
    (count,) = re.findall(r'"training": (\d+)', starts)
    assert f"- training examples: {int(count):,}" in body
    rows = {}
    for name, *values in re.findall(r"^\| (\S+/\S+) \| (\S+) \| (\S*) \|$", body, re.M):
        for written, value in zip((name, f"{name}_chance"), values, strict=True):
            rows |= {written: float(value.replace(",", ""))} if value else {}
    assert rows.keys() == numbers.keys()
    for name, value in rows.items():
        assert abs(value - numbers[name]) <= 1e-3 * max(1, abs(numbers[name]))
    for name, kind in {"digits": "zero_shot", "pairs": "retrieval"}.items():
        (told,) = re.findall(rf"^- `{name}`: {kind}, 360 examples (.*)$", body, re.M)
        assert "source (name digits, split test); transform resize(10)|central_crop(8)" in told
    assert str(tmp_path) not in body
    assert_same(weights.read(tmp_path / "out"), workdir.read_pretrained(tmp_path / "run"))


def test_what_cannot_be_uploaded_is_told_in_a_line(
    hub, token, reference_dir, tmp_path, capsys, monkeypatch
):
    path, out = reference_dir / "hf-vit", tmp_path / "out"

    def refuse(*more):
        assert push(path, out, *more) == 1
        (line,) = capsys.readouterr().err.strip().splitlines()
        return line

    assert "--push_to=model must be OWNER/NAME" in refuse("--push_to=model")
    assert "--push_to=a/b@main must be OWNER/NAME" in refuse("--push_to=a/b@main")
    assert not out.exists()
    told = refuse("--push_to=another/model")
    assert "another/model: http" in told and "refuses access (403): the token may not" in told
    assert told.endswith(f"; {out} is whole, and `hf upload another/model {out}` uploads it")
    assert weights.read(out).description == "vit"
    monkeypatch.delenv("HF_TOKEN")
    assert "takes a token that may write: `hf auth login`" in refuse("--push_to=somebody/model")
