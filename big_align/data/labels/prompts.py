"""Texts that name a class."""

from collections.abc import Sequence

from big_align.data.labels.classes import ClassList
from big_align.errors import UserError

DEFAULT_TEMPLATES = ("a photo of a {}.",)


def choose_templates(
    classes: ClassList,
    templates: Sequence[str] | None,
    default: tuple[str, ...] | None = None,
) -> tuple[str, ...]:
    """Returns the given templates, else the class list's, else the default, "a photo of a {}."."""
    if templates is not None:
        return (templates,) if isinstance(templates, str) else tuple(templates)
    return classes.templates or default or DEFAULT_TEMPLATES


def fill_class_templates(
    classes: ClassList, templates: Sequence[str] | None, with_descriptions: bool = False
) -> list[list[str]]:
    """Puts every class name, and then its synonyms, into every template.

    Args:
      classes: the names.
      templates: texts with one `{}` for the name; None as in `choose_templates`.
      with_descriptions: whether a name is followed by the description of its class.

    Returns:
      The texts of each class; a class with synonyms has more of them than one without.

    Raises:
      UserError: no template, or one without `{}`.
    """
    synonyms = classes.synonyms or ((),) * len(classes)
    templates = choose_templates(classes, templates)
    return [
        [text for group in fill_templates((name, *more), templates) for text in group]
        for name, more in zip(classes.phrases(with_descriptions), synonyms, strict=True)
    ]


def fill_templates(names: Sequence[str], templates: Sequence[str]) -> list[list[str]]:
    """Puts every class name into every template.

    Args:
      names: the classes.
      templates: texts with one `{}` for the name.

    Returns:
      The filled templates of each class, in their order.

    Raises:
      UserError: no template, or one without `{}`.
    """
    if not templates:
        raise UserError("no template; '{}' alone uses the bare name")
    for template in templates:
        if not isinstance(template, str) or template.count("{}") != 1:
            raise UserError(f"template {template!r} needs one {{}} where the class name goes")
    return [[template.replace("{}", name) for template in templates] for name in names]
