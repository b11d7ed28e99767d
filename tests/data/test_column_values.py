"""A column of texts becomes something else only if nothing is lost."""

import datetime
import itertools

import numpy as np
import pyarrow as pa
import pytest

from big_align.data.column_values import type_column, write_key
from big_align.use.search.stores.filters import apply_filters

LOOK_ALIKE = [
    "007", "7", "00501", "501", "1e3", "1000", "10000000000000000003", "10000000000000000004",
    "9007199254740993.5", "9007199254740993.25", "1.10", "1.1", "3", "3.0", "+7", "2021-05-03",
    "2021-05-03 00:00:00", "true", "1", "True", "nan", "12:30", "12:30:00",
]  # fmt: skip


def test_a_filter_finds_the_rows_with_that_text_and_no_others():
    wrong = []
    for one, other in itertools.combinations(LOOK_ALIKE, 2):
        texts = [one, other, None, one]
        table = pa.table({"id": type_column(texts)})
        for text in ("nan" not in texts) * texts[:2]:  # which may be a missing number
            found = np.flatnonzero(apply_filters(table, [f"id={text}"])).tolist()
            if found != [n for n, x in enumerate(texts) if x == text]:
                wrong.append((text, texts, found))
    assert wrong == []


@pytest.mark.parametrize(
    "texts, expected",
    [
        (["7", None, "-12", "0"], [7, None, -12, 0]),
        (["3.50", "12.00"], [3.5, 12.0]),
        (["3.0", "3.25", "1e-05", "1e+16"], [3.0, 3.25, 1e-05, 1e16]),
        (["0.1", "0.30000000000000004", "-0.5", "7"], [0.1, 0.30000000000000004, -0.5, 7.0]),
        (["1.5", "nan", "NaN", "inf"], [1.5, None, None, float("inf")]),
        (["TRUE", "FALSE", None], [True, False, None]),
        (["2021-05-03", None], [datetime.date(2021, 5, 3), None]),
        (["2021-05-03T10:00:00", "2021-05-03 10:00:00.5"],
         [datetime.datetime(2021, 5, 3, 10), datetime.datetime(2021, 5, 3, 10, 0, 0, 500000)]),
        (["10:30:00"], [datetime.time(10, 30)]),
        ([1, 2.5, None], [1, 2.5, None]),
        ([True, None], [True, None]),
    ],
)  # fmt: skip
def test_what_is_written_as_numbers_and_dates_are_is_read_as_these(texts, expected):
    assert type_column(texts).to_pylist() == expected


@pytest.mark.parametrize(
    "values, expected",
    [
        (["007", "8"], ["007", "8"]),
        (["1e3", "2"], ["1e3", "2"]),
        (["10000000000000000003", "2"], ["10000000000000000003", "2"]),
        (["0.12345678901234567890", "2"], ["0.12345678901234567890", "2"]),
        (["1.10", "1.9"], ["1.10", "1.9"]),
        (["2021-02-30", "2021-03-01"], ["2021-02-30", "2021-03-01"]),
        (["25:00:00"], ["25:00:00"]),
        (["nan", None], ["nan", None]),
        ([None, None], [None, None]),
        ([7, "007", None, True], ["7", "007", None, "true"]),
        ([10**19 + 3, 7], ["10000000000000000003", "7"]),
        ([2**53 + 1, 0.5], ["9007199254740993", "0.5"]),
    ],
)
def test_what_would_be_lost_stays_a_text(values, expected):
    assert type_column(values).to_pylist() == expected


def test_lists_and_objects_are_no_column():
    assert type_column([None, [1]]) is None and type_column(["a", {}]) is None


@pytest.mark.parametrize(
    "value, expected",
    [
        ("007", "007"), (" a ", "a"), (7, "7"), (7.0, "7"), (np.float32(7), "7"), (7.5, "7.5"),
        (10**19 + 3, "10000000000000000003"), (None, ""), (float("nan"), ""), (b"a\xff", "a\\xff"),
        (datetime.date(2021, 5, 3), "2021-05-03"), (datetime.datetime(2021, 5, 3), "2021-05-03"),
        (datetime.datetime(2021, 5, 3, 1), "2021-05-03 01:00:00"),
    ],
)  # fmt: skip
def test_a_key_is_what_a_text_has(value, expected):
    assert write_key(value) == expected
