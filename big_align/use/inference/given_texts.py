"""Texts and class names as a caller has them."""

import os
from typing import Any

import numpy as np

from big_align.core.errors import UserError
from big_align.data.labels.classes import ClassList, read_classes


def check_texts(texts: Any) -> list[str]:
    """Lists the given texts, one or several; a UserError says which is none."""
    texts = [texts] if isinstance(texts, str) else texts
    if not hasattr(texts, "__iter__") or isinstance(texts, bytes) or np.shape(texts) == ():
        raise UserError(f"texts is a {type(texts).__name__}; give a list of texts")
    if not (texts := list(texts)):
        raise UserError("texts is empty; give at least one text")
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise UserError(f"text {number} is a {type(text).__name__}; it must be a text (str)")
        if any("\ud800" <= letter <= "\udfff" for letter in text):
            raise UserError(f"text {number} has half of a surrogate pair: UTF-8 has no such thing")
    return [str(text) for text in texts]


def read_names(names: Any) -> ClassList:
    """Makes a class list of names, or reads the one that is named."""
    if isinstance(names, str | os.PathLike):
        return read_classes(os.fspath(names))
    names = tuple(names) if hasattr(names, "__iter__") else ()
    if not names or not all(isinstance(name, str) and name.strip() for name in names):
        raise UserError("names must be a list of at least one class name, or the name of a list")
    return ClassList.from_names(names)
