"""Numbers in environment variables."""

import os
import re

from big_align.core.errors import UserError, put_in_a_line


def read_number(name: str, least: int, default: int | None = None) -> int | None:
    """Returns the whole number in a variable; `default` if it is unset or empty.

    Raises:
      UserError: the variable holds something else, or less than `least`.
    """
    text = os.environ.get(name, "").strip()
    if not text:
        return default
    if not re.fullmatch("[0-9]{1,9}", text) or int(text) < least:
        raise UserError(
            f"the environment variable {name} is {put_in_a_line(repr(text))}; it must be a whole "
            f"number of at least {least}"
        )
    return int(text)
