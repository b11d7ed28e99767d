"""Images beside files of their texts, as img2dataset's `files` and many scripts leave them."""

import os

import numpy as np
from absl import logging

from big_align.core.errors import FieldError, MissingFile, UserError, put_in_a_line
from big_align.core.nodes import Given
from big_align.data import examples, files, listing
from big_align.data.sources.folder_source import tell_unread
from big_align.data.text_members import TextMembers


class FilePairsSource:
    """Examples of folders with `000000042.jpg` beside `000000042.txt`, `.json` or `.cls`.

    The files are in the folder or in folders below it, as in img2dataset's FOLDER/00000/*.jpg.
    A name with several images, or without one of its texts, counts as broken. Endings are the same
    in capitals. Each folder is a shard; its files are listed once and read on demand. An image that
    links give several names is one example, with the texts and labels beside all of them.

    Args:
      path: the folder; globs, braces and comma lists, local or any fsspec path; or a list of them.
      caption: the ending of the file that holds the text, or the field of a JSON file that holds a
        text or a list of texts: `txt`, `json.captions`. Languages in braces, `json.{en,de}`, mean
        one field each. None or "" reads no captions.
      label: likewise the class number, or a JSON list of them: `cls`, `json.label`. None reads
        none.
      caption_lines: whether each line of a text is a caption of its own.
      language: likewise the language of the captions, as in `json.language`; None if nothing names
        it.
      needs_texts: whether an image without one of its texts is left out; otherwise `read_image`
        reads it.

    Raises:
      UserError: there is no such folder, or no image in it has these files beside it.
    """

    class_names: tuple[str, ...] | None = None

    def __init__(
        self,
        path: listing.Paths,
        caption: str | None = "txt",
        label: str | None = None,
        caption_lines: bool = False,
        language: str | None = None,
        needs_texts: Given[bool] = True,
    ):
        self._text_members = TextMembers(caption, label, caption_lines, language)
        roots = listing.expand_paths(path)
        listed = list(dict.fromkeys(n for root in roots for n in listing.list_below(root)))
        if not listed:
            raise MissingFile(f"no file in the folder {path!r} or in a folder below it")
        tell_unread(path, listed)
        self._files = files.files_of(listed[0])
        texts = self._text_members.names
        wanted = texts if needs_texts else []
        folders = _group(listed, {*examples.IMAGE_EXTENSIONS, *map(str.lower, texts)})
        self._respelled: dict[str, str] = {}
        there: dict[str, tuple[list[str], int]] = {}
        said = ""
        for folder, found in folders.items():
            whole, faults = _find_faults(found, wanted)
            if faults:
                stem, fault = next(iter(faults.items()))
                told = put_in_a_line(f"of the first, {folder}/{stem}, {fault}")
                logging.warning("%s: %d images are left out; %s", folder, len(faults), told)
                said = said or told
            for stem in whole:
                self._respelled |= _find_respelled(f"{folder}/{stem}", found[stem], texts)
            names = [f"{stem}.{_image_kind(found[stem])}" for stem in whole]
            there[folder] = names, len(faults)
        self._place_names(there)
        if not self.shard_sizes.sum():
            raise _explain_nothing(path, listed, wanted, said)

    def _place_names(self, there: dict[str, tuple[list[str], int]]) -> None:
        """Makes a shard of each folder, from the names of its images and how many are broken."""
        grouped = listing.group_names(
            [f"{top}/{name}" for top, (names, _) in there.items() for name in names]
        )
        self._others = {path: others for path, others in grouped.items() if others}
        self._folders, self._names, broken = [], [], []
        stems: set[str] = set()
        for folder, (names, faults) in there.items():
            kept = [name for name in names if f"{folder}/{name}" in grouped]
            if kept or faults:
                stems.update(name.rpartition(".")[0] for name in kept)
                self._folders.append(folder)
                encoded = [name.encode("utf-8", "surrogateescape") for name in kept]
                self._names.append(np.array(encoded, dtype="S"))
                broken.append(faults)
        self.shard_sizes = np.array([len(names) for names in self._names], np.int64)
        self.broken = np.array(broken, np.int64)
        # as many repeat, or more: every folder has its main.jpg and its detail.jpg
        self._names_repeat = 2 * len(stems) <= self.shard_sizes.sum()

    read = examples.read_in_parts

    def read_image(self, shard: int, index: int) -> bytes:
        return self._read(self.name(shard, index))

    def read_text(self, shard: int, index: int) -> tuple[list[str], tuple[int, ...]]:
        path = self.name(shard, index)
        captions, labels = self._read_beside(path)
        for other in self._others.get(path, ()):
            more, further = self._read_beside(other)
            captions += [text for text in more if text not in captions]
            labels = tuple(dict.fromkeys(labels + further))
        return captions, labels

    def _read_beside(self, image: str) -> tuple[list[str], tuple[int, ...]]:
        stem = image.rpartition(".")[0]
        texts = [self._read(f"{stem}.{kind}") for kind in self._text_members.names]
        return self._text_members.parse(texts)

    def key(self, shard: int, index: int) -> str:
        """Returns the name that the files of an example share, with its folder if names repeat."""
        stem = self._name(shard, index).rpartition(".")[0]
        return f"{self._folders[shard]}/{stem}" if self._names_repeat else stem

    def name(self, shard: int, index: int) -> str:
        return f"{self._folders[shard]}/{self._name(shard, index)}"

    def shard_name(self, shard: int) -> str:
        return self._folders[shard]

    def _name(self, shard: int, index: int) -> str:
        return self._names[shard][index].decode("utf-8", "surrogateescape")

    def _read(self, path: str) -> bytes:
        path = self._respelled.get(path, path)
        try:
            return self._files.read_all(path)
        except (OSError, ValueError) as error:
            raise examples.BrokenExample(f"{path!r} cannot be read: {error}") from error


def _group(listed: list[str], kinds: set[str]) -> dict[str, dict[str, list[str]]]:
    """Returns the endings of each name, by folder and name.

    An ending begins at the first dot: `1.en.txt` belongs to `1.jpg`. Where it would then be none of
    `kinds`, the dots before are part of the name, as in `2023.01.05.jpg`; unless there is an image
    of the shorter name, to which a file like `1.mask.png` belongs. (Without texts, such a file is
    left out in any folder.)
    """
    folders: dict[str, dict[str, list[str]]] = {}
    others = []
    for path in listed:
        folder, _, base = path.rpartition("/")
        stem, _, kind = base.partition(".")
        if stem and kind.lower() in kinds:
            folders.setdefault(folder, {}).setdefault(stem, []).append(kind)
            continue
        parts = kind.split(".")
        endings = (".".join(parts[n:]) for n in range(1, len(parts)))  # the longest first
        if stem and (ending := next((e for e in endings if e.lower() in kinds), "")):
            others.append((folder, stem, base, ending))
    images = {(folder, stem) for folder in folders for stem in _with_image(folders[folder])}
    for folder, stem, base, ending in others:
        if (folder, stem) not in images:
            whole = base.removesuffix(f".{ending}")
            folders.setdefault(folder, {}).setdefault(whole, []).append(ending)
    return folders


def _with_image(found: dict[str, list[str]]) -> list[str]:
    return [stem for stem, kinds in found.items() if _image_kind(kinds)]


def _find_faults(
    found: dict[str, list[str]], wanted: list[str]
) -> tuple[list[str], dict[str, str]]:
    """Returns the names that are examples, and what is wrong with the others that have an image."""
    faults = {stem: _find_fault(found[stem], wanted) for stem in _with_image(found)}
    whole = [stem for stem, fault in faults.items() if not fault]
    # what follows the last dot of a name may say what it is, as in `1.mask`
    others = {stem for stem in faults if "." in stem and stem.rpartition(".")[2].isalpha()}
    return whole, {stem: why for stem, why in faults.items() if why and stem not in others}


def _find_fault(kinds: list[str], wanted: list[str]) -> str:
    images = [kind for kind in kinds if kind.lower() in examples.IMAGE_EXTENSIONS]
    if len(images) > 1:
        return f"there are several images: {', '.join(images)}"
    there = [kind.lower() for kind in kinds]
    missing = [kind for kind in wanted if kind.lower() not in there]
    return f"the file {missing[0]!r} is missing" if missing else ""


def _find_respelled(path: str, kinds: list[str], wanted: list[str]) -> dict[str, str]:
    """Returns the files of a name whose endings are spelled otherwise than is wanted."""
    spelled = {kind.lower(): kind for kind in reversed(kinds)}
    others = [kind for kind in wanted if kind not in kinds and kind.lower() in spelled]
    return {f"{path}.{kind}": f"{path}.{spelled[kind.lower()]}" for kind in others}


def _image_kind(kinds: list[str]) -> str:
    return next((kind for kind in kinds if kind.lower() in examples.IMAGE_EXTENSIONS), "")


def _explain_nothing(
    path: listing.Paths, listed: list[str], wanted: list[str], said: str
) -> UserError:
    kinds = {os.path.basename(name).partition(".")[2] for name in listed} - {""}
    listing = ", ".join(sorted(kinds)[:20]) or "none"
    beside = " and ".join(f"NAME.{kind}" for kind in wanted)
    there = "; ".join([f"the files there end in {listing}", *filter(None, [said])])
    if not wanted:
        return UserError(f"no image in {path!r}; {there}")
    message = f"no image in {path!r} has {beside} beside it; {there}"
    return FieldError(message, caption="ENDING")
