"""Characters that HTML names, in texts."""

import html
import re
from html.entities import html5

# A name is only complete with its semicolon, or where no letter, digit or = follows. So it is in an
# attribute (HTML Standard, 13.2.5.73), as alt-texts are: "rock&reggae" has no sign in it.
REFERENCE = re.compile(r"&(?:#[0-9]+;?|#[xX][0-9a-fA-F]+;?|([a-zA-Z][a-zA-Z0-9]*(?:;|(?![\w=]))))")


def unescape(text: str) -> str:
    """Returns a text with the characters that entities such as `&amp;` and `&#39;` stand for."""
    return REFERENCE.sub(_replace, text) if "&" in text else text


def _replace(found: re.Match) -> str:
    return html.unescape(found[0]) if found[1] is None else html5.get(found[1], found[0])
