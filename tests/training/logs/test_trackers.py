"""What trackers are told: TensorBoard and, where it is installed, Weights & Biases offline."""

import importlib.util
import io
import json
import sys

import numpy as np
import pytest
from PIL import Image
from tensorboard.compat.proto import event_pb2

from big_align.config.overrides import load_config
from big_align.core.errors import ConfigError, UserError
from big_align.runs import check
from big_align.training.logs import trackers
from big_align.training.logs.metrics import MetricWriter
from tests.run_main import TINY

PICTURES = {"pairs/nearest": np.arange(4 * 5 * 3, dtype=np.uint8).reshape(4, 5, 3)}


def test_tensorboard_shows_the_pixels(tmp_path):
    writer = MetricWriter(str(tmp_path), step=0)
    writer.show(3, PICTURES)
    writer.close()
    (path,) = tmp_path.glob("events*")
    (event,) = [event for event in read_events(path.read_bytes()) if event.summary.value]
    (value,) = event.summary.value
    shown = np.asarray(Image.open(io.BytesIO(value.image.encoded_image_string)))
    assert (event.step, value.tag) == (3, "pairs/nearest")
    assert (shown == PICTURES["pairs/nearest"]).all()


def read_events(content):
    """Reads records: a length of 8 bytes, a checksum of 4, the event, a checksum of 4."""
    while content:
        end = 12 + int.from_bytes(content[:8], "little")
        yield event_pb2.Event.FromString(content[12:end])
        content = content[end + 4 :]


def test_every_tracker_is_told_everything_and_closed(tmp_path):
    class Recorder:
        def __init__(self):
            self.heard = []

        def write(self, step, scalars):
            self.heard.append((step, dict(scalars)))

        def show(self, step, pictures):
            self.heard.append((step, sorted(pictures)))

        def close(self):
            self.heard.append("closed")

    recorder = Recorder()
    writer = MetricWriter(str(tmp_path), 0, [recorder])
    writer.write(1, {"loss": 2.0})
    writer.show(1, PICTURES)
    writer.close()
    assert recorder.heard == [(1, {"loss": 2.0}), (1, ["pairs/nearest"]), "closed"]


def test_without_the_package_it_is_one_line_before_anything_starts(monkeypatch):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "wandb" else find_spec(name)
    )
    config = load_config(TINY, "--config.log.wandb=pears")
    with pytest.raises(UserError, match=r"config.log.wandb = 'pears' needs .*big_align\[wandb\]"):
        check.check_config(config)
    assert trackers.open_trackers("nowhere", {}, None) == []


@pytest.mark.parametrize(
    ("variables", "netrc", "passes"),
    [
        ({}, "", False),
        ({"WANDB_MODE": "offline"}, "", True),
        ({"WANDB_MODE": "disabled"}, "", True),
        ({"WANDB_API_KEY": "0" * 40}, "", True),
        ({}, "machine api.wandb.ai login user password 0", True),
        ({}, "machine elsewhere login user password 0", False),
    ],
)
def test_without_a_login_it_is_one_line_before_anything_starts(
    variables, netrc, passes, tmp_path, monkeypatch
):
    wandb = pytest.importorskip("wandb")
    for name in ("WANDB_MODE", "WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "netrc").write_text(netrc)
    given = {"WANDB_BASE_URL": "https://api.wandb.ai", "NETRC": str(tmp_path / "netrc")}
    for name, value in {**given, **variables}.items():
        monkeypatch.setenv(name, value)
    wandb.teardown()  # it has read its variables once
    try:
        config = load_config(TINY, "--config.log.wandb=pears", "--config.evaluators={}")
        if passes:
            check.check_config(config)
            return
        with pytest.raises(UserError, match="wandb = 'pears' needs an account: .*WANDB_API_KEY"):
            check.check_config(config)
        check.check_config(config, training=False)  # an evaluation logs nothing there
    finally:
        wandb.teardown()


def test_another_field_of_the_log_is_an_error():
    config = load_config(TINY)
    with config.unlocked():
        config.log.wnadb = "pears"
    with pytest.raises(ConfigError, match="config.log.wnadb is unknown.*'wandb'"):
        check.check_config(config)


class FakeRun:
    """Stands for a run of Weights & Biases: the values of every step, by its id."""

    kept: dict[str, dict[int, dict]] = {}

    def __init__(self, identity):
        self.steps = self.kept.setdefault(identity, {})
        self.finished = False

    def log(self, values, step):
        assert step >= max(self.steps, default=0), "Weights & Biases drops what goes back"
        self.steps.setdefault(step, {}).update(values)

    def finish(self):
        self.finished = True


@pytest.fixture
def fake_wandb(monkeypatch):
    class Errors:
        class Error(Exception):
            pass

    class Fake:
        errors, Settings, Image = Errors, dict, staticmethod(lambda pixels: pixels.shape)

        @staticmethod
        def init(id, project, **_):
            if project == "refused":
                raise Errors.Error("nobody is\nlogged in")
            return FakeRun(id)

    monkeypatch.setitem(sys.modules, "wandb", Fake)
    FakeRun.kept = {}
    return FakeRun


def test_a_continued_run_has_every_step_once(tmp_path, fake_wandb):
    """Killed in step 5 after a checkpoint of step 3, the run repeats 4 and 5."""
    one = trackers.WeightsAndBiases(str(tmp_path), "pears", {})
    for step in range(1, 6):
        one.write(step, {"loss": float(step)})
    two = trackers.WeightsAndBiases(str(tmp_path), "pears", {})
    for step in range(4, 8):
        two.write(step, {"loss": float(step)})
        two.show(step, PICTURES)
    two.close()
    (run,) = fake_wandb.kept.values()
    assert {step: values["loss"] for step, values in run.items()} == {n: n for n in range(1, 8)}
    # Step 4 was whole; step 5 may have lacked what comes last.
    assert [step for step, values in run.items() if "pairs/nearest" in values] == [5, 6, 7]
    assert json.loads((tmp_path / "wandb.json").read_text())["step"] == 7


def test_a_refusal_is_one_line(tmp_path, fake_wandb):
    with pytest.raises(UserError, match="config.log.wandb = 'refused': nobody is logged in"):
        trackers.WeightsAndBiases(str(tmp_path), "refused", {})


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"id": "x"}', '{"id": "x", "step": [1]}'])
def test_a_damaged_note_of_the_run_is_one_line(tmp_path, fake_wandb, text):
    (tmp_path / "wandb.json").write_text(text)
    with pytest.raises(UserError, match=f"{tmp_path}/wandb.json does not name a run.*remove it"):
        trackers.WeightsAndBiases(str(tmp_path), "pears", {})


@pytest.mark.slow
def test_weights_and_biases_takes_it_offline(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    for steps in ((1, 2), (2, 3)):
        (tracker,) = trackers.open_trackers(str(tmp_path), {"seed": 0}, "pears")
        for step in steps:
            tracker.write(step, {"loss": 1.0 / step})
            tracker.show(step, PICTURES)
        tracker.close()
    record = json.loads((tmp_path / "wandb.json").read_text())
    runs = sorted((tmp_path / "wandb").glob(f"offline-run-*-{record['id']}"))
    assert record["step"] == 3 and runs
    assert len(list(tmp_path.rglob("*.png"))) == 3  # one a step
