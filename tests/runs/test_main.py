"""Every mistake on the command line is one line that names it, before anything is read."""

import re
import subprocess
import sys

import pytest

from big_align.config.overrides import load_config
from big_align.runs import train
from tests.forked_programs import forking_python
from tests.run_main import ROOT, TINY, Run, environment

UNREADABLE = "--config.data.source={'name': 'tar', 'path': '/no/such/shard-*.tar'}"


WRONG_VALUES = [  # a flag, and what is said of it; starting again is of no use
    ("--config.batch_sise=8", "--config.batch_sise=8.*did you mean --config.batch_size="),
    ("--config.model.image.widht=8", "--config.model.image.widht=8.*did you mean 'width'"),
    ("--config.batch_size=many", "--config.batch_size=many"),
    ("--config.schedule.learning_rate=fast", "--config.schedule.learning_rate=fast"),
    ("--config.model.image.name=resnest", "config.model.image.name.*did you mean 'resnet'"),
    ("--mode=test", "--mode=test.*train.eval"),
    ("--confg=x", "'confg'.*config"),
    ("--config.batch-size=8", "'batch-size' is no name of a field; write --config.batch_size=8"),
    ("--workdir=memory://x", "--workdir=memory://x is an address, and a workdir is a local folder"),
    ("config.batch_size=8", r"unexpected arguments \['config.batch_size=8'\]"),
    ("--config.batch_size=12.5", "--config.batch_size=12.5: it must be of type int"),
    ("--config.lr=0.1", "the config has no field 'lr'.*--config.schedule.learning_rate=...?"),
    ("--config.batch_size=0", "config.batch_size = 0 must be at least 1"),
    ("--config.schedule.decay=steep", "config.schedule: decay = 'steep'.*linear"),
    ("--config.model.image.stem=7", "config.model: stem = '7' is unknown"),
    ("--config.model.image.group_size=3", "config.model: .*group_size=3"),
    ("--config.model.text.heads=3", "config.model: .*heads=3"),
    ("--config.data.transform=resise(8)", "config.data.transform: unknown operation 'resise'"),
    ("--checkpoint=best", "--checkpoint is for --mode=eval"),
    ("--profile=7", "--profile=7 is not FIRST:LAST"),
    ("--profile=7:6", "--profile=7:6 is not FIRST:LAST"),
    ("--config.compilation_cache=main.py/x", "compilation_cache = 'main.py/x': .*no folder"),
    ("--config.checkpoint.folder=memory://x", "memory://x: checkpoints are kept in a local folder"),
    ("--config.compiler_options={'a': [1]}", r"compiler_options.a = \[1\] is not True"),
    ("--config.data.classes=imagenett", "config.data.classes: .*did you mean 'imagenet'"),
    ("--config.data.views_per_image=2", "config.data.views_per_image = 2, .*'align' takes one"),
    ("--config.data.mixture={'pairs': {'weight': 1.0}}", "source is not used beside"),
    ("--config.objective={'name': 'cross_entropy'}", "'cross_entropy' needs classes"),
]
OTHERS = [  # of the machine, or of files that may be there next time
    ("--distributed", "--distributed.*launch/"),
    (UNREADABLE, "config.data.source: no file matches '/no/such/shard-"),
    ("--config.init.all=/no/such", "config.init.all: there is no file, folder or workdir /no/such"),
    ("--config.data.classes=/no/such.json", "class list '/no/such.json' is neither a file nor"),
]
MISTAKES = [*WRONG_VALUES, *OTHERS]


@pytest.fixture(scope="module")
def mistakes(tmp_path_factory):
    """How main.py ends with each of them, by the flag, and the workdir that it was given."""
    folder = tmp_path_factory.mktemp("mistakes")
    workdirs = {flag: folder / f"run{n}" for n, (flag, _) in enumerate(MISTAKES)}
    variables = environment(1)
    ended = {}
    with forking_python(folder / "bin", variables) as python:
        for flag, workdir in workdirs.items():
            command = [python, "main.py", f"--config={TINY}", f"--workdir={workdir}"]
            ended[flag] = subprocess.run(
                [*command, UNREADABLE, flag],
                cwd=ROOT, env=variables, capture_output=True, text=True,
            ), workdir  # fmt: skip
    return ended


@pytest.mark.slow
@pytest.mark.parametrize(("flag", "message"), MISTAKES)
def test_a_mistake_is_one_line_that_names_it(mistakes, flag, message):
    ended, workdir = mistakes[flag]
    assert ended.returncode == (2 if (flag, message) in WRONG_VALUES else 1)
    assert re.fullmatch(f"error: .*{message}.*\n", ended.stderr)
    assert not workdir.exists() and ended.stdout == ""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "message"),
    [
        (None, "there is no file {path}"),
        ("def get_config():\n    raise ValueError('first\\nlast')", "last"),
        ("import nowhere", "ModuleNotFoundError: No module named 'nowhere'"),
        ("def get_config(x)\n", "SyntaxError"),
        ("config = {}", "it defines no get_config()"),
        ("def get_config():\n    pass", "get_config() returns None, which is no ml_collections.Co"),
        ("def get_config():\n    return {}.fields", "'dict' object has no attribute 'fields'"),
        ("def get_config():\n    return open('nowhere')", "No such file or directory: 'nowhere'"),
    ],
)
def test_a_config_file_that_cannot_be_loaded_is_one_line(source, message, tmp_path):
    path = tmp_path / "config.py"
    if source:
        path.write_text(source)
    run = Run(tmp_path / "run", config=path)
    assert run.wait() == 2
    assert run.err.startswith(f"error: --config={path}: ") and run.err.count("\n") == 1
    assert message.format(path=path) in run.err


@pytest.mark.slow
def test_evaluating_without_a_checkpoint_is_one_line(tmp_path):
    run = Run(tmp_path, "--mode=eval", devices=1)
    assert run.wait() == 1
    assert re.fullmatch("error: .*no checkpoints in .*: train with this workdir first\n", run.err)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ((), "--config is missing: it names .*, or one of the packaged: align_b5_ablation, .*"),
        (("--config=tests/tiny_config.py",), "--workdir is missing: .*"),
        (("--workdir={}",), "--workdir={} has no config.json to go by: give --config as well.*"),
        (("--mode=eval", "--workdir", "{}"), "--workdir={} has no config.json to go by: .*"),
        (
            ("--confg=quickstart", "--workdir={}"),
            r"Unknown command line flag 'confg'. Did you mean: config .",
        ),
    ],
)
def test_what_a_command_line_without_a_config_lacks_is_told(flags, message, tmp_path):
    done = subprocess.run(
        [sys.executable, "main.py", *(flag.format(tmp_path) for flag in flags)],
        cwd=ROOT, env=environment(1), capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 2 and done.stdout == ""
    assert re.fullmatch(f"error: {message.format(tmp_path)}\n", done.stderr)


@pytest.mark.slow
def test_a_workdir_alone_is_evaluated_on_the_devices_that_are_here(tmp_path):
    """Also when it was trained on another mesh; overrides and new evaluators are as ever."""
    flags = "--config.total_steps=2", "--config.mesh.fsdp=4", "--config.batch_size=16"
    train.run(load_config("tests/tiny_config.py", *flags), str(tmp_path))
    config = (tmp_path / "config.json").read_text()

    def evaluate(*flags, devices=2):
        done = subprocess.run(
            [sys.executable, "main.py", "--mode=eval", f"--workdir={tmp_path}", *flags],
            cwd=ROOT, env=environment(devices), capture_output=True, text=True,
        )  # fmt: skip
        return done.returncode, done.stdout + done.stderr

    added = "name=knn", "source.name=digits", "source.split=test", "transform=resize(8)"
    own = [f"--config.evaluators.own.{field}" for field in added]
    status, out = evaluate("--config.evaluators={}", *own, "--checkpoint=2")
    page = re.escape(str(tmp_path / "report.html"))
    assert status == 0
    assert re.fullmatch(rf".* at step 2\n  own/r1 +0\.\d+\nreport: {page}\n", out)
    assert (tmp_path / "config.json").read_text() == config
    # A batch of training that does not divide over them does not matter.
    fits = "--config.evaluate_batch_size=9"
    status, on_three = evaluate("--config.evaluators={}", *own, fits, devices=3)
    assert (status, on_three) == (0, out)
    status, out = evaluate("--config.mesh.fsdp=4")
    assert (status, out) == (
        2, "error: config.mesh: mesh.fsdp = 4 does not divide the number of devices, 2; "
        "--config.mesh.fsdp=... sets it\n",
    )  # fmt: skip
    status, out = evaluate("--checkpoint=newest")
    assert out == "error: --checkpoint=newest is neither the step of a checkpoint nor best\n"
