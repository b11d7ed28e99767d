"""What is nearly a model is told from one, and what would be right."""

import pathlib

import pytest

import big_align
from big_align.core.errors import UserError
from tests.weights.test_native_format import make_pretrained


@pytest.fixture
def run(tmp_path):
    """A folder like a workdir."""
    (tmp_path / "run/checkpoints/3/state").mkdir(parents=True)
    (tmp_path / "run/checkpoints/3/record").mkdir()
    (tmp_path / "run/config.json").write_text('{"objective": {}}')
    return tmp_path / "run"


def test_what_is_nearly_a_model_is_told(run, monkeypatch):
    monkeypatch.chdir(run.parent)
    (run.parent / "run.zip").write_bytes(b"")
    alone = run.parent / "3"
    (run / "checkpoints/3").rename(alone)
    (run.parent / "other/checkpoints").mkdir(parents=True)
    for given, message in {
        "s3://bucket/run": "is an address; models are read from local folders",
        "run.zip": "run.zip is compressed: unpack it",
        "run/config.json": "is the config of a model: give its folder, run$",
        "run/checkpoints": "is the folder of the checkpoints of a run: give its workdir, run$",
        "3": "3 is a checkpoint without its run: it is read as WORKDIR/checkpoints/STEP",
        "other": "other is a workdir without its config.json",
        "other/clip-vit": "is not here; a repository of that name .* is hf-hub:other/clip-vit$",
    }.items():
        with pytest.raises(UserError, match=message) as caught:
            big_align.load(given)
        assert "\n" not in str(caught.value)
    for given in ("none", "run/none"):
        with pytest.raises(FileNotFoundError):
            big_align.load(given)


def test_nothing_is_written_to_an_address(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for given in ("s3://bucket/x", pathlib.Path("gs://bucket/x")):
        with pytest.raises(UserError, match="is an address, and files are written here"):
            big_align.save(given, make_pretrained("resnet"), format="big_align")
    assert not list(tmp_path.iterdir())
