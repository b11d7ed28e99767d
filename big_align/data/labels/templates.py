"""Templates of texts that stand for classes.

A template has `{}` or `{name}` in place of the name, and may have `{description}`: iCLIP's eq. 5 is
"a photo of a {}, {description}". A description goes in without its final period. For a class that
has none, `{description}` is left out, with the signs and spaces before it.
"""

import re
from collections.abc import Sequence
from typing import Any

from big_align.core.errors import UserError

DESCRIPTION = "{description}"
_LEFT_OUT = re.compile(r"[\s,;:]*" + re.escape(DESCRIPTION))
_FIELD = re.compile(r"\{(\w+)\}")


def read_templates(templates: Sequence[Any]) -> tuple[str, ...]:
    """Returns templates, one or several, with `{}` for the name; UserError if one is wrong."""
    given = (templates,) if isinstance(templates, str) else tuple(templates)
    if not given:
        raise UserError("no template; '{}' alone uses the bare name")
    return tuple(map(_read_template, given))


def _read_template(template: Any) -> str:
    found = template.replace("{name}", "{}") if isinstance(template, str) else ""
    if found.count("{}") != 1:
        raise UserError(f"template {template!r} needs one {{}} where the class name goes")
    if strange := set(_FIELD.findall(found)) - {DESCRIPTION.strip("{}")}:
        raise UserError(
            f"template {template!r} has {{{min(strange)}}}; it takes {{}} for the name and "
            f"{DESCRIPTION}"
        )
    return found


def asks_description(template: str) -> bool:
    """Returns whether a template asks for the description of a class."""
    return DESCRIPTION in template


def fill_templates(templates: Sequence[str], name: str, description: str = "") -> list[str]:
    """Returns the text of a class in each of the templates that `read_templates` has returned."""
    return [_fill(template, name, description.rstrip(".")) for template in templates]


def _fill(template: str, name: str, description: str) -> str:
    if not asks_description(template):
        return template.replace("{}", name)
    kept = template if description else _LEFT_OUT.sub("", template)
    # What is put in may have such signs, too.
    parts = (part.replace(DESCRIPTION, description) for part in kept.split("{}"))
    return name.join(parts)
