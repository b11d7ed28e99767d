"""Captions and labels in the files, or members of a shard, that go with an image."""

import re
from collections.abc import Sequence
from typing import Any

from big_align.core.errors import UserError
from big_align.data import examples

LANGUAGES = re.compile(r"([^{}]*)\{([^{}]*)\}([^{}]*)")


class TextMembers:
    """Reads captions and labels from the members of an example; `names` are those that it reads.

    The arguments are as in `TarSource`. An example need not have all of several languages.
    """

    def __init__(
        self,
        caption: str | None,
        label: str | None,
        caption_lines: bool = False,
        language: str | None = None,
    ):
        read = check_languages(caption, language) or ([("", caption)] if caption else [])
        self._captions = [(tag, *examples.split_member(name)) for tag, name in read]
        self._label = examples.split_member(label) if label else None
        self._language = examples.split_member(language) if language else None
        self._caption_lines = caption_lines
        members = [member for _, member, _ in self._captions]
        members += [place[0] for place in (self._label, self._language) if place]
        self.names = list(dict.fromkeys(members))

    def parse(self, texts: list[bytes]) -> tuple[list[str], tuple[int, ...]]:
        """Returns captions and labels, given the content of each member of `names`."""
        data = dict(zip(self.names, texts, strict=True))
        captions, labels = [], ()
        if self._captions:
            captions = tell_captions(self._read_captions(data), self._caption_lines)
        if self._label:
            labels = examples.clean_labels(examples.read_field(data[self._label[0]], *self._label))
        return captions, labels

    def _read_captions(self, data: dict[str, bytes]) -> list[tuple[Any, Any]]:
        if len(self._captions) == 1:
            ((tag, *place),) = self._captions
            value = examples.read_field(data[place[0]], *place)
            if self._language:
                member, fields = self._language
                tag = find(examples.read_member(data[member], member), member, fields)
            return [(tag, value)]
        members = {member for _, member, _ in self._captions}
        values = {member: examples.read_member(data[member], member) for member in members}
        return [(tag, find(values[member], member, x)) for tag, member, x in self._captions]


def check_languages(caption: str | None, language: str | None) -> list[tuple[str, str]]:
    """Lists the languages in the braces of a field's name, each with the name of its field.

    The field is as in `json.captions.{en,de}`; without braces nothing is listed. `language` names
    the field of the language of captions, which cannot be used with braces. UserError says what is
    wrong.
    """
    if not re.search("[{}]", caption or ""):
        return []
    found = LANGUAGES.fullmatch(caption)
    languages = [name.strip() for name in found[2].split(",")] if found else []
    if not languages or not all(languages) or len(set(languages)) < len(languages):
        raise UserError(
            f"caption = {caption!r} does not read as a field with languages in braces, as "
            "json.{en,de} has them"
        )
    if language:
        raise UserError(
            f"caption = {caption!r} names the languages, so language = {language!r} is not used"
        )
    return [(language, f"{found[1]}{language}{found[3]}") for language in languages]


def tell_captions(found: Sequence[tuple[Any, Any]], lines: bool = False) -> list[str]:
    """Makes captions from the values of language fields; some may be empty, but not all."""
    there = [pair for pair in found if pair[1] not in (None, "", [])]
    if not there and len(found) > 1:
        listed = ", ".join(str(language) for language, _ in found)
        raise examples.BrokenExample(f"it has no caption in any of {listed}")
    captions: list[str] = []
    for language, value in there or found:
        texts = examples.clean_captions(value, lines)
        tag = language.strip() if isinstance(language, str) else ""
        captions += [examples.Caption(text, tag) for text in texts] if tag else texts
    return captions


def find(value: Any, member: str, fields: tuple[str, ...]) -> Any:
    """Returns the value of a field, or None if it is not there."""
    try:
        return examples.find_field(value, member, fields)
    except examples.BrokenExample:
        return None
