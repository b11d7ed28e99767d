"""The command prints what `classify` returns, a line for each image."""

import numpy as np
import pytest
from PIL import Image

import big_align
from big_align.tools import classify
from tests.use.inference.test_loaded_model import folder  # noqa: F401  (a fixture)


@pytest.fixture
def photos(tmp_path):
    rng = np.random.default_rng(0)
    paths = [str(tmp_path / name) for name in ("a.png", "b.png")]
    for path in paths:
        Image.fromarray(rng.integers(0, 256, (30, 40, 3)).astype(np.uint8)).save(path)
    return paths


def test_a_line_tells_the_classes_of_an_image(folder, photos, capsys, caplog):  # noqa: F811
    flags = [f"--model={folder}", "--names=dog, red cat,grass", "--template=a {}", "--top=2"]
    assert classify.main([*flags, *photos]) == 0
    lines = capsys.readouterr().out.splitlines()
    expected = big_align.load(folder).classify(photos, ["dog", "red cat", "grass"], ["a {}"])
    for path, pairs, line in zip(photos, expected, lines, strict=True):
        assert line == "\t".join([path, *(f"{name} {p:.3f}" for name, p in pairs[:2])])

    assert classify.main([*flags, photos[0], "none.jpg", photos[1]]) == 1
    assert capsys.readouterr().out.splitlines() == lines
    assert "none.jpg: there is no such file" in caplog.text


@pytest.mark.parametrize(
    "flags, message",
    [
        (["--names=dogs"], "class list 'dogs' is neither a file nor a list of the package"),
        (["--names=,"], "names must be a list of at least one class name"),
        (["--names=dog,cat", "--template=a photo"], "template 'a photo' needs one {}"),
        (["--names=dog,cat", "--top=0"], "--top=0 must be at least 1"),
        (["--names=dog,cat", "."], ". is a folder; write ./*.jpg"),
        (["--names=dog,cat", "--model=none"], "none: there is no such file or folder"),
    ],
)
def test_a_mistake_is_told_before_images_are_read(
    folder, photos, capsys, caplog, flags, message  # noqa: F811
):  # fmt: skip
    assert classify.main([f"--model={folder}", *flags, *photos, "none.jpg"]) in (1, 2)
    error, log = capsys.readouterr().err, caplog.text
    assert "none.jpg" not in log
    assert error.startswith("error: ") and message in error and error.count("\n") == 1
