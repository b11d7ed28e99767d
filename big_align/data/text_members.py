"""Captions and labels in the files, or members of a shard, that stand beside an image."""

import re
from typing import Any, NamedTuple

from big_align.data import examples
from big_align.errors import UserError

LANGUAGES = re.compile(r"([^{}]*)\{([^{}]*)\}([^{}]*)")


class TextMembers:
    """Reads captions and labels of the members of an example.

    Args:
      caption: the member that holds the text, or the field of a JSON member that holds a text
        or a list of texts: `txt`, `json.captions`. Languages in braces, `json.{en,de}`, stand for
        a field each; an example need not have all of them. None or "" reads no captions.
      label: likewise the class number, or a JSON list of them. None or "" reads none.
      caption_lines: whether each line of a text is a caption of its own.
      language: likewise what names the language of the captions, `json.language`. None or "" where
        nothing does.

    Attributes:
      names: the members that are read.

    Raises:
      UserError: the braces of `caption` do not read as languages, or `language` is named as well.
    """

    def __init__(
        self,
        caption: str | None,
        label: str | None,
        caption_lines: bool = False,
        language: str | None = None,
    ):
        self._captions = [
            _Field(each, *examples.split_member(name))
            for each, name in list_languages(caption or "")
        ]
        if language and any(field.language for field in self._captions):
            raise UserError(
                f"caption = {caption!r} tells the languages, so language = {language!r} is not used"
            )
        self._label = examples.split_member(label) if label else None
        self._language = examples.split_member(language) if language else None
        self._caption_lines = caption_lines
        members = [field.member for field in self._captions]
        members += [place[0] for place in (self._label, self._language) if place]
        self.names = list(dict.fromkeys(members))

    def parse(self, texts: list[bytes]) -> tuple[list[str], tuple[int, ...]]:
        """Returns captions and labels; raises BrokenExample.

        Args:
          texts: the content of each member of `names`.
        """
        data = dict(zip(self.names, texts, strict=True))
        captions, labels = [], ()
        if len(self._captions) == 1:
            (field,) = self._captions
            value = examples.read_field(data[field.member], field.member, field.fields)
            captions = examples.clean_captions(value, self._caption_lines)
            language = field.language or self._read_language(data)
            captions = [examples.Caption(c, language) for c in captions] if language else captions
        elif self._captions:
            captions = self._read_languages(data)
        if self._label:
            labels = examples.clean_labels(examples.read_field(data[self._label[0]], *self._label))
        return captions, labels

    def _read_languages(self, data: dict[str, bytes]) -> list[str]:
        """Returns the captions of all languages, in their order."""
        members = {field.member for field in self._captions}
        values = {member: examples.read_member(data[member], member) for member in members}
        captions: list[str] = []
        for language, member, fields in self._captions:
            value = _find(values[member], member, fields)
            if value in (None, "", []):
                continue
            found = examples.clean_captions(value, self._caption_lines)
            captions += [examples.Caption(text, language) for text in found]
        if not captions:
            listed = ", ".join(field.language for field in self._captions)
            raise examples.BrokenExample(f"it has no caption in any of {listed}")
        return captions

    def _read_language(self, data: dict[str, bytes]) -> str:
        """Returns the language that the example names, or "" where it names none."""
        if not self._language:
            return ""
        member, fields = self._language
        value = _find(examples.read_member(data[member], member), member, fields)
        return value.strip() if isinstance(value, str) else ""


class _Field(NamedTuple):
    """Where the captions of a language stand."""

    language: str
    member: str
    fields: tuple[str, ...]


def list_languages(caption: str) -> list[tuple[str, str]]:
    """Lists the languages that the name of a field has in braces, each with the name of its field.

    Args:
      caption: as in `json.captions.{en,de}`; without braces it is one field of no language, and ""
        is no field.

    Raises:
      UserError: the braces do not pair, or hold no languages or one twice.
    """
    if not re.search("[{}]", caption):
        return [("", caption)] if caption else []
    found = LANGUAGES.fullmatch(caption)
    languages = [name.strip() for name in found[2].split(",")] if found else []
    if not languages or not all(languages) or len(set(languages)) < len(languages):
        raise UserError(
            f"caption = {caption!r} does not read as a field with languages in braces, as "
            "json.{en,de} has them"
        )
    return [(language, f"{found[1]}{language}{found[3]}") for language in languages]


def _find(value: Any, member: str, fields: tuple[str, ...]) -> Any:
    """Returns the value of a field, or None where it is not there."""
    try:
        return examples.find_field(value, member, fields)
    except examples.BrokenExample:
        return None
