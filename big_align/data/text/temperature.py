"""The share of each language in what is drawn, by temperature."""

from collections.abc import Mapping

from big_align.core.errors import UserError


def share_by_temperature(counts: Mapping[str, int | float], temperature: float) -> dict[str, float]:
    """Returns the share of each language: p_l ~ n_l^(1/T).

    T = 1 draws languages as the data have them, a larger T evens them out, and T = inf draws all
    alike. This is the convention of Arivazhagan et al. 2019 ("Massively multilingual neural machine
    translation in the wild", T = 5, for the data and for the vocabulary). The smoothing exponent of
    others is 1/T: 0.7 in multilingual BERT (Devlin et al. 2019, the notes of the
    release), 0.3 in XLM-R (Conneau et al. 2020) and mT5 (Xue et al. 2021).

    Args:
      counts: texts of each language, n_l.
      temperature: T, above 0.

    Returns:
      The shares p_l, which sum to 1.

    Raises:
      UserError: the temperature is not above 0, or a language has no texts.
    """
    if not temperature > 0:
        raise UserError(f"temperature is {temperature:g}; it must be above 0, inf for equal shares")
    if none := [language for language, count in counts.items() if not count > 0]:
        raise UserError(f"there are no texts in {none[0]!r}, so it has no share")
    largest = max(counts.values(), default=1)
    powers = {name: (count / largest) ** (1 / temperature) for name, count in counts.items()}
    total = sum(powers.values())
    return {name: power / total for name, power in powers.items()}
