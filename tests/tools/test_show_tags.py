"""Evaluators of tags and the picture of them, from the config of a run to what they print."""

import json
import re
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from big_align.config.overrides import load_config
from big_align.data.tags.tag_list import make_tag_list, write_tag_list
from big_align.data.text.tokenizers import WordTokenizer
from big_align.runs import build, check, evaluate, restore
from big_align.training.state import describe_state
from tests.data.samples import encode_image, make_pixels, write_tar
from tests.run_main import ROOT, environment
from tests.tagged_config import WORDS

CONFIG = "tests/tagged_config.py"
CAPTIONS = (
    ["a dog", "the dogs on grass", "a ball"],
    ["the sky", "a dog under the sky"],
    ["the ball on grass", "the ball"],
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory, data_dir):
    """Holds images with captions, tag lists, and the checkpoint of a model that is not trained."""
    folder = tmp_path_factory.mktemp("tagged")
    members = []
    for number in range(12):
        captions = CAPTIONS[number % 3]
        facts = json.dumps({"captions": captions, "only": captions[0]}).encode()
        pixels = encode_image(make_pixels(20 * number))
        members += [(f"{number:03d}.png", pixels), (f"{number:03d}.json", facts)]
    write_tar(folder / "images.tar", members)
    tokenizer = WordTokenizer(WORDS, length=8)
    for name, tags in (("tags", ("dog", "ball", "grass", "sky")), ("other", ("dog", "sky"))):
        made = make_tag_list(tags, range(len(tags), 0, -1), tokenizer)
        write_tag_list(made, str(folder / f"{name}.json"), {})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("nltk.data.path", [str(data_dir / "nltk_data")])
        save_untrained(load_config(f"{CONFIG}:{folder}"), folder / "run")
    return folder


def save_untrained(config, workdir):
    mesh, tokenizer = build.build_mesh(config), build.build_tokenizer(config)
    _, create = describe_state(
        build.build_objective(config, mesh, tokenizer),
        build.build_optimizer(config)[0],
        build.example_batch(config, tokenizer),
        mesh,
    )
    checkpointer = build.build_checkpointer(config, str(workdir))
    checkpointer.save(create(), build.describe_run(config, tokenizer))
    checkpointer.close()
    restore.keep_config(str(workdir), config, 0)


def show(folder, data_dir, *flags):
    command = [sys.executable, "-m", "big_align.tools.show_tags", f"--config={CONFIG}:{folder}"]
    variables = environment(devices=1) | {"NLTK_DATA": str(data_dir / "nltk_data")}
    return subprocess.run(
        [*command, f"--workdir={folder / 'run'}", *flags],
        cwd=ROOT, env=variables, capture_output=True, text=True,
    )  # fmt: skip


@pytest.mark.slow
def test_the_picture_shows_two_photographs_a_row(folder, data_dir, tmp_path):
    output = tmp_path / "tags.png"
    done = show(folder, data_dir, f"--output={output}", "--images=4", "--tags=2")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{output}: {folder / 'run'} at step 0; it finds tags in ")
    assert done.stdout.endswith(" of 12 photographs\n")
    assert Image.open(output).height == pytest.approx(2 * 175, abs=2)
    # The red of an image is 20 times its number.
    pixels = np.asarray(Image.open(output).convert("RGB"))
    shown = {level for level in range(0, 240, 20) if (pixels == (level, 0, 7)).all(-1).sum() > 5000}
    assert len(shown) == 4


@pytest.mark.slow
def test_a_judge_compares_captions_and_texts_of_tags(folder, data_dir, tmp_path):
    output = tmp_path / "fit.png"
    flags = f"--output={output}", f"--judge={folder / 'run'}"
    done = show(folder, data_dir, *flags, "--config.evaluators.found.threshold=0.001")
    assert done.returncode == 0, done.stderr
    cosine = r"-?[01]\.\d{3}"
    line = f"mean cosine {cosine}, with those of another photograph {cosine}"
    assert re.match(f"captions: {line}\ntexts of tags: {line}\n", done.stdout), done.stdout
    assert Image.open(output).size == (720, 420)
    done = show(folder, data_dir, *flags, "--config.evaluators.found.threshold=0.999")
    assert done.returncode == 1
    assert done.stderr.startswith("error: tags are found in 0 images that have a caption, but")


@pytest.mark.slow
def test_tags_are_drawn_though_none_is_known_to_be_missed(folder, data_dir, tmp_path):
    """As with CC-3M, whose images have one caption each; the flags are docs/evaluation.md's."""
    fields = {
        "name": "found_tags",
        "source.name": "tar",
        "source.path": folder / "images.tar",
        "source.caption": "json.only",
        "transform": "resize(8)",
        "tags": folder / "tags.json",
    }
    flags = [f"--config.evaluators.more.{name}={value}" for name, value in fields.items()]
    # What others are measured on, as ImageNet there, need not be on this machine.
    flags.append("--config.evaluators.found.source.path=absent.tar")
    output = tmp_path / "tags.png"
    done = show(folder, data_dir, f"--output={output}", "--evaluator=more", *flags)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(" of 12 photographs\n") and output.exists()


@pytest.mark.slow
def test_an_evaluator_of_another_kind_is_one_line(folder, data_dir):
    done = show(folder, data_dir, "--evaluator=recognition")
    assert done.returncode == 1
    assert done.stderr == (
        "error: config.evaluators has no evaluator 'recognition' that is a found_tags; it has: "
        "found\n"
    )


@pytest.mark.slow
def test_evaluation_prints_what_both_evaluators_measure(folder, data_dir, monkeypatch):
    monkeypatch.setattr("nltk.data.path", [str(data_dir / "nltk_data")])
    results = evaluate.run(load_config(f"{CONFIG}:{folder}"), str(folder / "run"))
    # Missed are grass and ball ("dogs" is given as "dog"), dog, and nothing.
    assert results["found/missed_per_image"] == 1
    assert results["recognition/tags"] == 4
    for name, value in results.items():
        assert np.isfinite(value), name
    assert 0 < results["recognition/map"] <= 1


@pytest.mark.parametrize(
    "override, message",
    [
        ("--config.objective.recognition=False", "evaluators.found: .*trains no recognizer"),
        ("--config.evaluators.found.tags={folder}/other.json", "found: tags = .*other tags than"),
        ("--config.evaluators.found.tags={folder}/none.json", "found: tag list .*no such file"),
        ("--config.evaluators.recognition.truths=x", "no field 'truths'"),
        ("--config.evaluators.recognition.threshold=high", "threshold"),
    ],
)
@pytest.mark.slow
def test_a_config_that_does_not_fit_is_refused_before_it_runs(folder, override, message):
    with pytest.raises(ValueError, match=message):
        config = load_config(f"{CONFIG}:{folder}", override.format(folder=folder))
        check.check_config(config)


@pytest.mark.slow
def test_evaluators_of_tags_need_an_objective_that_recognizes_them(folder):
    config = load_config(f"{CONFIG}:{folder}")
    with config.unlocked():
        config.objective = dict(name="clip")
    message = "found: the objective 'clip' has no method 'recognize'; train"
    with pytest.raises(ValueError, match=message):
        check.check_config(config)
