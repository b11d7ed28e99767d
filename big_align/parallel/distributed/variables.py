"""Numbers in environment variables."""

import os
import re

from big_align.core.errors import UserError, put_in_a_line


def read_number(name: str, least: int, default: int | None = None) -> int | None:
    """Returns the number in a variable, `least` or more; `default` if it is unset or empty."""
    text = os.environ.get(name, "").strip()
    if not text:
        return default
    if not re.fullmatch("[0-9]{1,9}", text) or int(text) < least:
        raise UserError(
            f"the environment variable {name} is {put_in_a_line(repr(text))}; it must be a whole "
            f"number of at least {least}"
        )
    return int(text)
