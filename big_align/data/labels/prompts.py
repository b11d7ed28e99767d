"""Texts that name a class."""

from collections.abc import Sequence

from big_align.data.labels.classes import ClassList

DEFAULT_TEMPLATES = ("a photo of a {}.",)


def choose_templates(classes: ClassList, templates: Sequence[str] | None) -> tuple[str, ...]:
    """Returns the given templates, else those of the class list, else "a photo of a {}."."""
    if templates is not None:
        return tuple(templates)
    return classes.templates or DEFAULT_TEMPLATES


def fill_templates(names: Sequence[str], templates: Sequence[str]) -> list[list[str]]:
    """Puts every class name into every template.

    Args:
      names: the classes.
      templates: texts with one `{}` for the name.

    Returns:
      For each class the filled templates, in their order.

    Raises:
      ValueError: no template, or one without `{}`.
    """
    if not templates:
        raise ValueError("no template; '{}' alone uses the bare name")
    for template in templates:
        if template.count("{}") != 1:
            raise ValueError(f"template {template!r} needs one {{}} where the class name goes")
    return [[template.replace("{}", name) for template in templates] for name in names]
