"""scikit-learn's scanned digits with captions: a data set that comes with the package."""

import numpy as np

from big_align.core.errors import check_known
from big_align.data.sources import array_source

DIGIT_CLASSES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
DIGIT_TEMPLATES = (
    "a scan of the digit {}",
    "a handwritten {}",
    "the number {} written by hand",
    "a small grey picture of a {}",  # checkpoints know these words: the spelling stays
    "{} drawn with a pen",
)
DIGIT_WORDS = tuple(
    sorted(
        {word for template in DIGIT_TEMPLATES for word in template.split()} - {"{}"}
        | {*DIGIT_CLASSES, *map(str, range(10))}
    )
)
"""Every word that a caption or a filled template can hold."""

TEST_EVERY = 5


def digits_source(split: str) -> array_source.ArraySource:
    """Makes a source of the 1797 digits of 8 x 8 pixels; every fifth is in the test split.

    A caption names the digit by its word or by its numeral, in any of `DIGIT_TEMPLATES`; the
    label is the digit.

    Args:
      split: `train` or `test`.

    Raises:
      WrongValue: another split.
    """
    check_known("split", split, ("train", "test"))
    from sklearn import datasets  # takes a second to import

    digits = datasets.load_digits()
    test = np.arange(len(digits.target)) % TEST_EVERY == 0
    chosen = test if split == "test" else ~test
    gray = np.round(digits.images[chosen] * (255 / 16)).astype(np.uint8)  # counts of 0 to 16
    image = np.repeat(gray[..., None], 3, axis=-1)
    label = digits.target[chosen]
    captions = [
        [template.format(name) for template in DIGIT_TEMPLATES for name in names]
        for names in ((DIGIT_CLASSES[digit], str(digit)) for digit in label)
    ]
    return array_source.ArraySource(image, captions, label, title=f"digits/{split}")
