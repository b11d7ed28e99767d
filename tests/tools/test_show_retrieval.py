import subprocess
import sys

import pytest
from PIL import Image

from big_align.config.overrides import load_config
from big_align.runs import build
from big_align.training.state import describe_state
from tests.run_main import ROOT, TINY, environment


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    """Holds the checkpoint of a model that has not been trained."""
    folder = tmp_path_factory.mktemp("run")
    config = load_config(TINY)
    mesh = build.build_mesh(config)
    tokenizer = build.build_tokenizer(config)
    _, create = describe_state(
        build.build_objective(config, mesh, tokenizer),
        build.build_optimizer(config)[0],
        build.example_batch(config, tokenizer),
        mesh,
    )
    checkpointer = build.build_checkpointer(config, str(folder))
    checkpointer.save(create(), build.describe_run(config, tokenizer))
    checkpointer.close()
    return folder


def show(workdir, *flags):
    command = [sys.executable, "-m", "big_align.tools.show_retrieval", f"--config={TINY}"]
    return subprocess.run(
        [*command, f"--workdir={workdir}", *flags],
        cwd=ROOT, env=environment(devices=1), capture_output=True, text=True,
    )  # fmt: skip


@pytest.mark.slow
def test_the_picture_has_a_row_for_each_query(workdir, tmp_path):
    heights = {}
    for queries in (1, 3):
        output = tmp_path / f"{queries}.png"
        done = show(workdir, f"--output={output}", f"--queries={queries}", "--nearest=3")
        assert done.returncode == 0, done.stderr
        assert done.stdout == f"{output}: {workdir} at step 0\n"
        heights[queries] = Image.open(output).height
    assert heights[3] == pytest.approx(3 * heights[1], abs=3)


@pytest.mark.slow
def test_an_unknown_evaluator_is_one_line(workdir):
    done = show(workdir, "--evaluator=pears")
    assert done.returncode == 1
    assert done.stderr == (
        "error: config.evaluators has no 'pears' (did you mean 'pairs'?); it has: digits, pairs\n"
    )
