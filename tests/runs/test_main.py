"""Every mistake on the command line is one line that names it, before anything is read."""

import re

import pytest

from tests.run_main import Run

UNREADABLE = "--config.data.source={'name': 'tar', 'path': '/no/such/shard-*.tar'}"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--config.batch_sise=8", "--config.batch_sise=8.*did you mean 'batch_size'"),
        ("--config.model.image.widht=8", "--config.model.image.widht=8.*did you mean 'width'"),
        ("--config.batch_size=many", "--config.batch_size=many"),
        ("--config.schedule.learning_rate=fast", "--config.schedule.learning_rate=fast"),
        ("--config.batch_size=0", "config.batch_size = 0 must be at least 1"),
        ("--config.schedule.decay=steep", "config.schedule: decay = 'steep'.*linear"),
        ("--config.model.image.name=resnest", "config.model.image.name.*did you mean 'resnet'"),
        ("--config.model.image.stem=7", "config.model: stem='7' is unknown"),
        ("--config.model.image.group_size=3", "config.model: .*group_size=3"),
        ("--config.model.text.heads=3", "config.model: .*heads=3"),
        ("--config.data.transform=resise(8)", "config.data.transform: unknown operation 'resise'"),
        ("--mode=test", "--mode=test.*train.eval"),
        ("--profile=7", "--profile=7 is not FIRST:LAST"),
        ("--profile=7:6", "--profile=7:6 is not FIRST:LAST"),
        ("--config.compilation_cache=main.py/x", "compilation_cache = 'main.py/x': .*no folder"),
        ("--config.compiler_options={'a': [1]}", r"compiler_options.a = \[1\] is not True"),
        ("--confg=x", "'confg'.*config"),
        ("config.batch_size=8", r"unexpected arguments \['config.batch_size=8'\]"),
        ("--distributed", "--distributed.*launch/"),
        ("--config.data.classes=imagenett", "config.data.classes: .*did you mean 'imagenet'"),
        ("--config.data.views_per_image=2", "config.data.views_per_image = 2, .*'align' takes one"),
        ("--config.data.mixture={'pairs': {'weight': 1.0}}", "source is not used beside"),
        ("--config.objective={'name': 'cross_entropy'}", "'cross_entropy' needs classes"),
        (UNREADABLE, "config.data.source: no file matches '/no/such/shard-"),
    ],
)
def test_a_mistake_is_one_line_that_names_it(flag, message, tmp_path):
    run = Run(tmp_path / "run", UNREADABLE, flag, devices=1)
    assert run.wait() == 1
    assert re.fullmatch(f"error: .*{message}.*\n", run.err)
    assert not (tmp_path / "run").exists() and run.out == ""


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (None, "there is no file {path}"),
        ("def get_config():\n    raise ValueError('first\\nlast')", "last"),
        ("import nowhere", "ModuleNotFoundError: No module named 'nowhere'"),
        ("def get_config(x)\n", "SyntaxError"),
    ],
)
def test_a_config_file_that_cannot_be_loaded_is_one_line(source, message, tmp_path):
    path = tmp_path / "config.py"
    if source:
        path.write_text(source)
    run = Run(tmp_path / "run", config=path)
    assert run.wait() == 1
    assert run.err.startswith(f"error: --config={path}: ") and run.err.count("\n") == 1
    assert message.format(path=path) in run.err


@pytest.mark.slow
def test_evaluating_without_a_checkpoint_is_one_line(tmp_path):
    run = Run(tmp_path, "--mode=eval", devices=1)
    assert run.wait() == 1
    assert re.fullmatch("error: .*no checkpoints in .*: train with this workdir first\n", run.err)
