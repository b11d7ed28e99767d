"""The files without which a model cannot be loaded: vocabularies, class lists and tag lists.

A run copies them into its workdir, so that the workdir can be used from any folder, and moved.
"""

import os
import pathlib
from collections.abc import Iterator, Mapping

from ml_collections import ConfigDict

from big_align.config.components.tables import TOKENIZERS
from big_align.core.errors import UserError
from big_align.core.whole_files import write_whole
from big_align.data import files
from big_align.data.labels.classes import OWN_NAMES, ClassList, built_in_names, format_classes
from big_align.data.package_files import locate

FOLDER = "files"  # of a workdir: the copies, each named after its field of the config
VOCABULARIES = ("vocabulary", "merges")
"""Arguments of the tokenizers here that always name files; in others they may mean anything."""


def keep_files(workdir: str, config: ConfigDict, own: Mapping[str, ClassList]) -> None:
    """Copies the files that a model needs into a workdir; `own` are classes that sources name."""
    for place, classes in own.items():
        copy = _name_copy(workdir, place, "classes", OWN_NAMES)
        copy.parent.mkdir(exist_ok=True)
        content = format_classes(classes, f"the source of {place}")
        write_whole(copy, content.encode(), sync=True)
    for node, field, copy in _list_files(workdir, config):
        if files.is_file(path := locate(node[field])):
            copy.parent.mkdir(exist_ok=True)
            write_whole(copy, files.files_of(path).read_all(path), sync=True)


def use_kept_files(workdir: str | os.PathLike, config: ConfigDict) -> None:
    """Makes a config name the copies in its workdir, in place; other files stay as they are."""
    for node, field, copy in list(_list_files(workdir, config)):
        if copy.is_file():
            node[field] = str(copy)


def replace_missing(workdir: str | os.PathLike, config: ConfigDict) -> None:
    """Makes a config name the copies of files that are gone, in place."""
    for node, field, copy in list(_list_files(workdir, config)):
        if copy.is_file() and not files.is_file(locate(node[field])):
            node[field] = str(copy)


def check_vocabulary(workdir: str | os.PathLike, config: ConfigDict) -> None:
    """Checks that the files of the tokenizer of a trained model exist; no others can be made."""
    fields = VOCABULARIES if config.tokenizer.get("name") in TOKENIZERS else ()
    for node, field, copy in _list_files(workdir, config):
        if field in fields and not files.is_file(locate(node[field])):
            raise UserError(
                f"config.tokenizer.{field}: there is no file {node[field]}; it has to be the one "
                f"that {workdir} was trained with, which can be copied to {copy}"
            )


def _list_files(
    workdir: str | os.PathLike, config: ConfigDict
) -> Iterator[tuple[ConfigDict, str, pathlib.Path]]:
    """Yields nodes and fields that may name a file, with the place of the copy.

    Fields that name one file have one copy, since parts of a mixture share labels by its name.
    """
    data, copies = config.data, {}
    fields = [
        ("tokenizer", config.tokenizer, field)
        for field in config.tokenizer
        if field not in ("name", "shorten")
    ]
    fields += [("data", data, "classes"), ("data.tags", data.get("tags") or {}, "path")]
    for name, part in sorted((data.get("mixture") or {}).items()):
        fields.append((f"data.mixture.{name}", part, "classes"))
    for place, node, field in fields:
        given = node.get(field)
        if isinstance(given, str) and given not in built_in_names():
            key = (place, given) if given == OWN_NAMES else given  # each part has names of its own
            yield node, field, copies.setdefault(key, _name_copy(workdir, place, field, given))


def name_vocabulary(workdir: str | os.PathLike) -> pathlib.Path:
    """Returns where a workdir keeps a vocabulary of its own."""
    return _name_copy(workdir, "tokenizer", "vocabulary", "vocabulary.txt")


def _name_copy(workdir: str | os.PathLike, place: str, field: str, given: str) -> pathlib.Path:
    """Returns where the file that a field names is copied to; names of a source become JSON."""
    ending = ".json" if given == OWN_NAMES else pathlib.PurePath(given).suffix
    return pathlib.Path(workdir, FOLDER, f"{place}.{field}{ending}")
