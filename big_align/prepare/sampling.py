"""How much of each language is kept, and which pairs these are."""

from collections.abc import Callable, Iterable, Mapping

from big_align.core.errors import UserError
from big_align.data.text.temperature import share_by_temperature
from big_align.prepare.rules import Kept, Pair, Rules, decide_group, draw_order

NO_LANGUAGE = (
    "--language_temperature samples by language, and no pair has one: give "
    "--languages=MODULE:FUNCTION, such as big_align.data.text.languages:identify_language"
)


def choose_rates(
    counts: Mapping[str, int], temperature: int | float, floor: int
) -> dict[str, float]:
    """Returns which fraction of each language is kept, so that its share is p_l ~ n_l^(1/T).

    Nothing is repeated: the language that is wanted most, relative to its pairs, is kept as a
    whole, and the others in proportion to it. Languages with at most `floor` pairs are kept as a
    whole and do not count in this, since many of them are errors in identifying the language, and a
    single such pair would set the size of all others. So are pairs without a language, "".
    """
    told = {name: count for name, count in counts.items() if name}
    if counts and not told:
        raise UserError(NO_LANGUAGE)
    large = {name: count for name, count in sorted(told.items()) if count > floor}
    rates = {
        name: share / large[name]
        for name, share in share_by_temperature(large, float(temperature)).items()
    }
    most = max(rates.values(), default=1.0)
    # rounded, so that the last bit of a power, which differs among machines, decides no pair
    scaled = {name: float(f"{rate / most:.12g}") for name, rate in rates.items()}
    return dict.fromkeys(counts, 1.0) | scaled


def draw_pairs(
    rates: Mapping[str, float], seed: int, name_key: Callable[[int, int], str]
) -> Callable[[Pair], bool]:
    """Returns a function that decides if a pair is kept, from its key and language alone.

    Texts of one example share their draw; with other rates, the pairs of a lower one are among
    those of a higher one. Languages without a rate are kept.
    """

    def is_drawn(pair: Pair) -> bool:
        rate = rates.get(pair.language, 1.0)
        if rate >= 1:
            return True
        drawn = draw_order(seed, f"language {name_key(pair.file, pair.row)}")
        return int.from_bytes(drawn, "big") < rate * 2**64

    return is_drawn


def count_languages(
    pairs: Iterable[Pair], crowded: bool, listed: bool, rules: Rules
) -> dict[str, int]:
    """Counts the pairs of an image that no rule drops by language; see `decide_group`."""
    counts: dict[str, int] = {}
    for decided in decide_group(pairs, crowded, listed, rules):
        if not isinstance(decided, Kept) and not decided[1]:
            language = decided[0].language
            counts[language] = counts.get(language, 0) + 1
    return counts
