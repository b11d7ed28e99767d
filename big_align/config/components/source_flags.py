"""The flags that say where a tool's examples are: --source, --source_name and others."""

import argparse
import functools
import glob
import inspect
import os
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from absl import logging

from big_align.config.components import signatures, tables
from big_align.core.errors import ConfigError, MissingFile, UserError, check_members
from big_align.core.nodes import Node
from big_align.data import boundary, listing
from big_align.data.examples import IMAGE_EXTENSIONS, Source
from big_align.data.sources.object_rows import METADATA
from big_align.data.sources.rows_source import look_inside
from big_align.data.tags import tag_counting
from big_align.data.text import vocabulary

TEXT = "text"
"""Value of `--source_name`: text files, a caption per line, for tools that only read captions."""

ENDINGS = {
    r"\.tar": "tar",
    r"\.[ct]sv": "csv",
    r"\.parquet": "parquet",
    r"\.jsonl": "imagefolder",
    r"\.json": "coco",
    r"\.(tfrec(ord)?s?|array_record)(-\S*)?": "tfrecord",
    r"\.npz": "npz",
    r"\.txt": TEXT,
}
"""Endings of paths, and the kind of source for each; other paths need --source_name."""
IMAGES = rf"[.,]({'|'.join(IMAGE_EXTENSIONS)})\}}?$"
"""Endings of the paths of images, including `*.{jpg,png}`."""
YOURS = "your-pairs-*.tar"
"""What stands for the path of a user's pairs where a config is not given one, as in a plan."""

SHARDS = ("tar", "csv", "coco", "parquet", "tfrecord", "npz")
"""Kinds of sources whose files have endings of their own."""


def add_source_flags(parser: argparse.ArgumentParser, required: bool = True) -> None:
    """Adds --source, --source_name and --source_argument to a command line."""
    parser.add_argument(
        "--source", required=required,
        help="where the examples are: shards, a table, a folder; globs, braces and comma lists, "
        r"local or remote (with \, for a comma in a name); or tfds:NAME:SPLIT",
    )  # fmt: skip
    parser.add_argument(
        "--source_name",
        help="the kind of --source, as in config.data.source.name: tar, csv, folder, tfrecord, "
        "tfds, ... (default: guessed from the path)",
    )
    parser.add_argument(
        "--source_argument", action="append", default=[], metavar="NAME=VALUE",
        help="another field of --source, such as caption=json.captions; may be repeated",
    )  # fmt: skip


def recognize_source(path: str) -> str:
    """Returns the kind of a source, determined from its path."""
    path = os.path.expanduser(path)
    if path.startswith("tfds:"):
        return "tfds"
    for ending, name in ENDINGS.items():
        if re.search(f"{ending}$", path, re.IGNORECASE) and name in (*tables.SOURCES, TEXT):
            return look_inside(path, name)
    if re.search(IMAGES, path, re.IGNORECASE):
        return "images"
    if os.path.isdir(path):
        _check_lists(path)
        return _recognize_folder(path)
    if re.search(r"\.(zip|tgz|[gx]z|7z|rar)$", path, re.IGNORECASE):
        raise UserError(f"--source={path} is compressed: unpack it, and write what is in it")
    if not re.search(r"[*?\[{,]|://", path) and not os.path.exists(path):
        raise MissingFile(f"--source={path}: there is no such file or folder")
    raise UserError(
        f"--source={path} does not say what kind of source it is: give --source_name, one of "
        f"{', '.join(sorted(tables.SOURCES))}"
    )


def _recognize_folder(path: str) -> str:
    """Returns the kind of a folder: with a list of files, texts next to images, or by class.

    A folder with images is not taken for one of tables or shards: such a file may be a note, or
    what img2dataset writes about its images.
    """
    names = sorted(name for name in os.listdir(path) if not name.startswith("."))
    if any(name in METADATA for name in names) and "imagefolder" in tables.SOURCES:
        return "imagefolder"
    with os.scandir(path) as entries:  # it knows folders without asking for each of a million files
        folders = sorted(each.path for each in entries if each.name[0] != "." and each.is_dir())
    inner = next(filter(None, map(_recognize_images, folders)), "")
    kind = _recognize_images(path)
    if kind == "images" and inner == "images":
        logging.warning(
            "--source=%s is read as images without classes, since some lie beside its folders; "
            "--source_name=folder takes the folders for classes",
            path,
        )
    if kind or inner == "files":
        return kind or inner
    for ending, name in ENDINGS.items():
        if name == "coco":
            continue
        found = [n for n in names if re.search(f"{ending}$", n)]
        if name == TEXT and inner:  # notes lie anywhere, but not tables
            found = [n for n in found if look_inside(os.path.join(path, n), "text") == "csv"]
        if found := next(iter(found), None):
            shown = f"*.{found.rpartition('.')[2]}" if name in ("tar", "parquet") else found
            other = ", or --source_name=folder if its folders are classes" * bool(inner)
            shown = f"--source='{listing.escape_commas(path)}/{shown}'"
            raise UserError(f"--source={path} is a folder; write {shown}{other}")
    return _recognize_below(path)


def _recognize_below(path: str) -> str:
    """Returns "folder" if no image is at the top of a folder or deeper than in its folders.

    Only then does a folder with a class per folder have all images; else they are just "images".
    Without any, it may have shards, as Hugging Face's data sets do, or tables of Arrow: a message
    names them.
    """
    shards, has_images = [], False
    for folder, names in listing.walk([path]):
        depth = len(os.path.relpath(folder, path).split(os.sep)) if folder != path else 0
        for name in names:
            if re.search(IMAGES, name, re.IGNORECASE):
                has_images = True
                if depth != 1:
                    return "images"
            elif name.endswith((".tar", ".parquet", ".arrow")):
                pattern = f"*{os.path.splitext(name)[1]}"
                shards.append(f"{listing.escape_commas(folder)}/{pattern}")
    if has_images or not shards:
        return "folder"
    if shards[0].endswith(".arrow"):
        raise UserError(
            f"--source={path} has Arrow files, which are not read; datasets.load_from_disk(...)"
            f".to_parquet(...) makes a file that is, with --source='....parquet'"
        )
    shown = " or ".join(f"--source='{found}'" for found in dict.fromkeys(shards))
    raise UserError(f"--source={path} is a folder; write {shown}")


def _recognize_images(folder: str) -> str:
    """Returns "files" if a folder has an image with a text of its name, "images" if it has any."""
    names = [name.rpartition(".") for name in os.listdir(folder) if not name.startswith(".")]
    images = {stem for stem, _, ending in names if ending.lower() in IMAGE_EXTENSIONS}
    texts = {stem for stem, _, ending in names if ending.lower() in ("txt", "json")}
    return "files" if images & texts else "images" if images else ""


def _check_lists(path: str) -> None:
    """Refuses a folder whose folders have lists of files: they are splits, and no classes."""
    root = glob.escape(path.rstrip("/"))
    deeper = sorted(found for name in METADATA for found in glob.glob(f"{root}/*/{name}"))
    if deeper and not any(os.path.exists(os.path.join(path, name)) for name in METADATA):
        shown = " or ".join(f"--source={os.path.dirname(found)}" for found in deeper[:3])
        raise UserError(
            f"--source={path} is a folder of folders with {os.path.basename(deeper[0])}; write "
            f"{shown}, or --source_name=folder if each is a class"
        )


def open_source(
    path: str,
    name: str | None = None,
    arguments: Sequence[str] = (),
    captions: bool = False,
    needs_texts: bool = True,
) -> tuple[Source, dict[str, Any]]:
    """Opens a source from the values of the flags; returns it, and the config node that makes it.

    Arguments are "NAME=VALUE". Captions are read if they are requested, or an argument names them;
    images without the texts that are read may be left out.
    """
    name = name or recognize_source(path)
    target = signatures.lookup(name, tables.SOURCES, "--source_name")
    parameters = inspect.signature(target).parameters
    node: dict[str, Any] = {"name": name, next(iter(parameters)): path}
    if path.startswith("tfds:"):
        node["dataset"], _, node["split"] = path.removeprefix("tfds:").rpartition(":")
        if not node["dataset"]:
            raise UserError(f"--source={path} does not read as tfds:NAME:SPLIT")
    if "caption" in parameters and not captions:
        node["caption"] = ""
    node |= read_values(arguments, "--source_argument", target)
    given = {"needs_texts": needs_texts} if "needs_texts" in signatures.list_given(target) else {}
    return signatures.make_named(tables.SOURCES, node, "--source", **given), node


def open_captions(
    path: str, name: str | None = None, arguments: Sequence[str] = (), used: int | None = None
) -> tuple[Callable[[], Iterable[str]], dict[str, Any]]:
    """Opens the captions of a source, or of text files (`TEXT`), from the values of the flags.

    Of an example, the first `used` captions count. Returns a function that reads the captions from
    the start, and raises a UserError if there are none at all; and the config node of the source.
    """
    if find_text_files(path, name) is not None:
        return functools.partial(vocabulary.read_lines, path), {"name": TEXT, "path": path}
    source, node = open_source(path, name, arguments, captions=True)
    return functools.partial(_read_captions, source, node, used), node


def find_text_files(path: str, name: str | None = None) -> list[str] | None:
    """Lists text files with a caption per line; returns None for any other kind of source."""
    if (name or recognize_source(path)) != TEXT:
        return None
    try:
        return listing.expand_paths(path)
    except ValueError as error:
        raise UserError(f"--source: {error}") from error


def _read_captions(source: Source, node: dict[str, Any], used: int | None) -> Iterator[str]:
    count = 0
    for caption in tag_counting.read_captions(source, used):
        count += 1
        yield caption
    if not count:
        target = signatures.lookup(node["name"], tables.SOURCES, "--source_name")
        known = "caption" in inspect.signature(target).parameters
        raise UserError(
            f"no example of {node['name']} {next(v for k, v in node.items() if k != 'name')} has a "
            "caption" + (signatures.advise("--source", caption="COLUMN") if known else "")
        )


def find_kind(node: Node) -> Any:
    """Returns the kind of a config node's source, or what its path is if that reads no such."""
    name, path = node.get("name"), node.get("path")
    if name not in SHARDS or not isinstance(path, str):
        return name
    try:
        kind = recognize_source(path)
    except UserError:
        return name
    return kind if kind in tables.SOURCES else name


def make_source(node: Node, where: str) -> Source:
    """Opens the source of a config node; an error says if another kind reads such files."""
    try:
        source = signatures.make_named(tables.SOURCES, node, where)
    except UserError as error:
        if node.get("path") == YOURS:
            raise ConfigError(
                f"{where}: the config needs your pairs, whose path follows its name and a colon, "
                "as in --config=own_pairs.py:photos/"
            ) from error
        if (kind := find_kind(node)) == node.get("name"):
            raise
        raise ConfigError(f"{error}; --{where}.name={kind} reads such files") from error
    check_members(source, Source, where)
    if ":" in str(node.get("name")):
        boundary.check_first(source, where)
    return source


def write_source_flags(node: Node) -> str:
    """Writes the flags that name the source of a config node; `open_source` reads them."""
    if (kind := find_kind(node)) != node.get("name"):
        node = {"name": kind, "path": node["path"]}
    target = signatures.lookup(node.get("name"), tables.SOURCES, "--source_name")
    settable = signatures.list_settable(target)
    first, *others = settable
    given = {k: tuple(v) if isinstance(v := node.get(k), list) else v for k in others}
    values = {k: v for k, v in given.items() if v not in (None, settable[k].default)}
    flags = [f"--source={node.get(first) or first.upper()}", f"--source_name={node['name']}"]
    flags += [f"--source_argument={name}={value}" for name, value in values.items()]
    return " ".join(map(shlex.quote, flags))


def read_values(arguments: Sequence[str], flag: str, target: Any) -> dict[str, Any]:
    """Reads texts "NAME=VALUE", each as a value of the type that its field has in a component."""
    values, parameters = {}, signatures.list_settable(target)
    for argument in arguments:
        field, equals, value = argument.partition("=")
        if not equals:
            raise UserError(f"{flag}={argument!r} does not read as NAME=VALUE")
        known = parameters.get(field)
        values[field] = signatures.read_argument(value, known.hint) if known else value
    return values
