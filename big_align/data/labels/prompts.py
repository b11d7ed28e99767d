"""Texts that name the classes of a list."""

from collections.abc import Sequence

from big_align.core.errors import UserError, warn_once
from big_align.data.labels.classes import ClassList
from big_align.data.labels.templates import asks_description, fill_templates, read_templates

DEFAULT_TEMPLATES = ("a photo of a {}.",)


def choose_templates(
    classes: ClassList, templates: Sequence[str] | None, default: tuple[str, ...] | None = None
) -> tuple[str, ...]:
    """Returns the given templates, else the class list's, else the default, "a photo of a {}.".

    If a template asks for descriptions that some classes lack, it warns; if all do, or a template
    is wrong, it raises UserError.
    """
    if templates is None:
        templates = classes.templates or default or DEFAULT_TEMPLATES
    chosen = read_templates(templates)
    bare = [n for n, text in zip(classes.names, classes.descriptions, strict=True) if not text]
    asking = next(filter(asks_description, chosen), None)
    if not asking or not bare:
        return chosen
    where = f"class list {classes.title}" if classes.title else "the given names"
    told = f"{len(bare)} of {len(classes)} classes have no description, {bare[0]!r} the first"
    if len(bare) < len(classes):
        warn_once(f"{where}: {told}; their texts in {asking!r} are without one")
        return chosen
    raise UserError(
        f"{where}: {told}, and the template {asking!r} asks for it; python -m "
        f"big_align.tools.describe_classes --classes={classes.title or 'NAMES.txt'} "
        f"--output={classes.described_in or 'DESCRIBED.json'} writes a list with those of WordNet "
        "or of a file; a template without {description} needs none"
    )


def fill_class_templates(
    classes: ClassList, templates: Sequence[str] | None, synonyms: bool = True
) -> list[list[str]]:
    """Puts every class into every template; None is as in `choose_templates`.

    With `synonyms`, those of a class follow its name, so it may have more texts than another one.
    """
    chosen = choose_templates(classes, templates)
    more = classes.synonyms if synonyms and classes.synonyms else ((),) * len(classes)
    return [
        [text for name in (own, *others) for text in fill_templates(chosen, name, description)]
        for own, others, description in zip(classes.names, more, classes.descriptions, strict=True)
    ]
