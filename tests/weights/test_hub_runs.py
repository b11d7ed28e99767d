"""Runs that start from a name on a hub: they record its commit, and go on without a hub."""

import json
import pathlib
import shutil

import pytest
from huggingface_hub import constants

from big_align.config.overrides import load_config
from big_align.core.errors import UserError
from big_align.runs import evaluate, train
from big_align.runs.initial_weights import fix_names
from tests.run_main import ROOT, read_losses
from tests.weights.test_inherited_settings import FLAGS, SEEN
from tests.weights.test_initialize import BERT, VIT, make_dual, save


@pytest.fixture
def repository(hub, tmp_path, monkeypatch):
    """A dual encoder of ours, with a vocabulary in a file of its own."""
    (tmp_path / "pieces.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nzero\n")
    words = dict(name="wordpiece", vocabulary=str(tmp_path / "pieces.txt"), length=8)
    node = make_dual(VIT, BERT, projection_bias=False)
    save(tmp_path / "dual", node, preprocessing=SEEN, tokenizer=words)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return hub.add("owner/model", tmp_path / "dual")


def make_config(path, *more, flags=FLAGS):
    given = f"--config.init.all={path}", "--config.data.transform=resize(36)|random_crop(32)"
    sizes = [
        f"--config.evaluators.{name}.transform=resize(36)|central_crop(32)"
        for name in ("digits", "pairs")
    ]
    return load_config(str(ROOT / "tests/tiny_config.py"), *flags, *given, *sizes, *more)


def read_init(workdir):
    return json.loads((workdir / "config.json").read_text())["init"]["all"]


@pytest.mark.slow
def test_a_run_records_the_commit_and_goes_on_without_the_hub_and_its_cache(
    hub, repository, tmp_path
):
    first = repository.refs["main"]
    train.run(make_config("owner/model", "--config.total_steps=4"), str(tmp_path / "run"))
    fixed = f"hf-hub:owner/model@{first}"
    assert read_init(tmp_path / "run") == fixed
    # the commit gives what the name gave
    train.run(make_config(fixed, "--config.total_steps=4"), str(tmp_path / "again"))
    losses = read_losses(tmp_path / "run")
    assert losses == read_losses(tmp_path / "again")
    repository.commit({"config.json": b"{}"})  # the name means something else now
    hub.fail("", times=10**6, status=500)
    shutil.rmtree(constants.HF_HUB_CACHE)
    hub.log.clear()
    for given in ("owner/model", "hf-hub:owner/model@main", fixed):
        train.run(make_config(given, "--config.total_steps=8"), str(tmp_path / "run"))
        assert read_init(tmp_path / "run") == fixed
    assert not hub.log
    assert read_losses(tmp_path / "run")[:4] == losses
    assert len(read_losses(tmp_path / "run")) == 8
    assert (tmp_path / "run/files/tokenizer.vocabulary.txt").is_file()


@pytest.mark.slow
def test_an_evaluation_records_the_commit(hub, repository, tmp_path):
    evaluate.run(make_config("owner/model"), str(tmp_path / "run"))
    told = json.loads((tmp_path / "run/evaluations.jsonl").read_text())["init"]
    assert told == {"all": f"hf-hub:owner/model@{repository.refs['main']}"}


def test_each_part_is_fixed_and_paths_stay(hub, repository, tmp_path):
    config = make_config("", f"--config.init.image={tmp_path}/dual", flags=())
    assert fix_names(config, str(tmp_path)).init == config.init
    with config.unlocked():
        config.init.update(text="owner/model@main", centers="owner/centers")
    fixed = fix_names(config, str(tmp_path)).init
    assert fixed.text == f"hf-hub:owner/model@{repository.refs['main']}"
    assert (fixed.image, fixed.centers) == (f"{tmp_path}/dual", "owner/centers")
    assert config.init.text == "owner/model@main"


def test_what_is_neither_here_nor_on_the_hub_is_told_with_its_field(hub, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    told = (
        "^config.init.all: weights/vit is no file or folder here, and hf-hub:weights/vit: .* has no"
    )
    with pytest.raises(UserError, match=told):
        train.run(make_config("weights/vit", flags=()), str(tmp_path / "run"))
    pathlib.Path("weights").mkdir()
    told = (
        "^config.init.all: there is no file, folder or workdir weights/vit: .* or hf-hub:OWNER/NAME"
    )
    with pytest.raises(UserError, match=told):
        train.run(make_config("weights/vit", flags=()), str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()
