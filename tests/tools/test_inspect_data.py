"""The tool tells the numbers and writes a page that needs nothing else."""

import re

import pytest

from big_align.tools import inspect_data
from tests.data.samples import BROKEN, break_some, make_members, write_tar

ROOT = __file__.rpartition("/tests/")[0]


def run(*flags):
    return inspect_data.main([f"--config={ROOT}/tests/tiny_config.py", *flags])


def tar_flags(path):
    return "--config.data.source.name=tar", f"--config.data.source.path={path}"


def test_a_page_is_one_file_that_shows_what_was_read(tmp_path, capsys):
    break_some(tmp_path, BROKEN)
    page = tmp_path / "page.html"
    flags = *tar_flags(f"{tmp_path}/train-*.tar"), "--config.data.hold_out=0.1"
    assert run(*flags, f"--output={page}", "--pictures=5", "--examples=all") == 0
    out, text = capsys.readouterr().out, page.read_text()
    assert "broken" in out and "train-" in out
    assert not re.search(r"https?://|<script|<link|@import|url\(", text)
    assert text.count("<img") == text.count('src="data:image/webp;base64,') == 5
    assert "prefers-color-scheme: dark" in text and "the image cannot be decoded" in text


@pytest.mark.parametrize(("repeat", "hold_out"), [(True, 0.1), (True, 0), (False, 0.1)])
def test_images_that_repeat_are_told_where_some_are_held_out(repeat, hold_out, tmp_path, capsys):
    members = [part for n in range(20) for part in make_members(n)[:2]]
    members += [(f"{900 + n}.{name[7:]}", data) for n in range(20 * repeat)
                for name, data in make_members(n)[:2]]  # fmt: skip
    path, page = write_tar(tmp_path / "x.tar", members), tmp_path / "page.html"
    assert run(*tar_flags(path), f"--config.data.hold_out={hold_out}", f"--output={page}") == 0
    for text in (capsys.readouterr().out, page.read_text()):
        assert ("if their keys differ, some are held out" in text) == (repeat and hold_out > 0)


def test_what_data_say_is_text_and_never_markup(tmp_path):
    image = make_members(0)[0][1]
    tar = write_tar(tmp_path / "a.tar", [("<b>.png", image), ("<b>.txt", b"<script>x</script>")])
    page = tmp_path / "page.html"
    words = "--config.tokenizer.words=('<script>x</script>',)"
    assert run(*tar_flags(tar), words, f"--output={page}") == 0
    text = page.read_text()
    assert "<script>" not in text and "&lt;script&gt;x&lt;/script&gt;" in text


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--examples=some", "--examples=some is neither a number above 0 nor all"),
        ("--output=/dev/null/page.html", "the folder /dev/null cannot be made"),
        ("--seed=-1", "--seed=-1 must be at least 0"),
        ("--config.data.transform=crop(3)", "config.data.transform: unknown operation 'crop'"),
        ("--config.data.source.splt=test", "write --config.data.source.split=test"),
    ],
)
def test_a_mistake_is_one_line(flag, message, capsys):
    assert run(flag) in (1, 2)
    error = capsys.readouterr().err.strip()
    assert error.startswith("error: ") and message in error and "\n" not in error


def test_a_file_name_that_is_not_utf_8_is_shown(tmp_path):
    folder = tmp_path / "caf\udce9"
    folder.mkdir()
    tar = write_tar(folder / "a.tar", make_members(0))
    page = tmp_path / "page.html"
    assert run(*tar_flags(str(tar)), f"--output={page}") == 0
    assert "caf\\udce9" in page.read_text()
