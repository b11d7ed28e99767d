"""A condition keeps the rows that plain Python keeps."""

import datetime

import numpy as np
import pyarrow as pa
import pytest

from big_align.core.errors import UserError
from big_align.use.search.metadata import empty_metadata
from big_align.use.search.stores.filters import apply_filters, split_filters

YEARS = [1999, 2004, None, 2020, 2004]
DAYS = [datetime.date(2020, 1, n) for n in range(1, 6)]
TABLE = pa.table(
    {
        "year": YEARS, "place": ["Bern", None, "New York", "bern", ""], "day": DAYS,
        "id": [2**53, 2**53 + 1, None, 5, -1],
        "night": [True, False, None, True, False], "f number": [1.4, 2.8, 8.0, None, 2.8],
    }
)  # fmt: skip


@pytest.mark.parametrize(
    "texts, expected",
    [
        (["year=2004"], [1, 4]),
        (["year!=2004"], [0, 3]),
        (["year < 2004"], [0]),
        (["year<=2004", "year>1999"], [1, 4]),
        (["year>=2003.5"], [1, 3, 4]),
        ([f"id={2**53 + 1}"], [1]),
        ([f"id>{2**53}"], [1]),
        (["id<5.5"], [3, 4]),
        ([f"id<{10**30}"], [0, 1, 3, 4]),
        (["place=Bern"], [0]),
        (["place==Bern"], [0]),
        (["place = =Bern"], []),
        (["year==2004"], [1, 4]),
        (["place=New York"], [2]),
        (["place="], [4]),
        (["place!=Bern"], [2, 3, 4]),
        (["day>=2020-01-04"], [3, 4]),
        (["night=true"], [0, 3]),
        (["f number=2.8", "year=2004", "night=False"], [1, 4]),
    ],
)
def test_conditions_keep_the_rows_that_meet_all(texts, expected):
    assert np.flatnonzero(apply_filters(TABLE, texts)).tolist() == expected


@pytest.mark.parametrize(
    "conditions",
    [
        ["place=Zürich, CH"],
        ["year>=2004", "place=Bern"],
        ["place=Zürich, CH", "year>2000", "f number!=2.8"],
        ["title=one, two, three", "place == a, b", "night=true"],
        ["place="],
        ["year=2004,5", "day<2020-01-04"],
    ],
)
@pytest.mark.parametrize("comma", [",", ", ", " , "])
def test_commas_part_conditions_and_not_values(conditions, comma):
    assert split_filters(comma.join(conditions)) == conditions
    assert split_filters(f" {comma.join(conditions)}, ") == conditions


def test_without_conditions_there_is_no_mask():
    assert apply_filters(TABLE, []) is None


@pytest.mark.parametrize(
    "text, message",
    [
        ("year", "the filter 'year' does not read as COLUMN=VALUE"),
        ("=3", "does not read as COLUMN=VALUE"),
        ("yaer=3", r"no column 'yaer' of metadata; it has 'year', .* \(did you mean 'year'\?\)"),
        ("year=old", "year=old: the column holds int64, and 'old' does not read as that"),
        ("night=3", "the column holds bool, and '3'"),
        ("day=yesterday", "the column holds date32"),
        ("place>5", "place>5: the column holds texts, such as 'Bern', which have no order of num"),
    ],
)
def test_what_is_no_condition_is_told(text, message):
    with pytest.raises(UserError, match=message):
        apply_filters(TABLE, [text])


@pytest.mark.parametrize("ids", [["7", "007", "12"], ["7", "10000000000000000003"], ["7", "1e3"]])
def test_texts_have_no_order_of_numbers_and_are_told_by_one_that_is_none(ids):
    table = pa.table({"id": ids})
    with pytest.raises(UserError, match=f"such as '{ids[1]}', which have no order of numbers"):
        apply_filters(table, ["id>=8"])
    for n, text in enumerate(ids):
        assert np.flatnonzero(apply_filters(table, [f"id={text}"])).tolist() == [n]
    assert apply_filters(pa.table({"at": ["10:30", "9:00"]}), ["at>10:00"]).tolist() == [True, True]


def test_a_table_without_columns_lists_none():
    with pytest.raises(UserError, match="no column 'year' of metadata; it has none"):
        apply_filters(empty_metadata(3), ["year=3"])


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_a_time_without_a_zone_is_one_of_the_columns_zone(unit):
    noons = [datetime.datetime(2020, month, 1, 12) for month in (5, 6, 7)]  # in UTC
    table = pa.table({"taken": pa.array(noons, pa.timestamp(unit, "Asia/Tokyo"))})
    for text, expected in (
        ("taken>=2020-06-01", [1, 2]),
        ("taken>2020-06-01 20:59", [1, 2]),
        ("taken>2020-06-01T21:00:00", [2]),
        ("taken=2020-06-01T12:00:00Z", [1]),
        ("taken<2020-06-01T12:00:00+01:00", [0]),
    ):
        assert np.flatnonzero(apply_filters(table, [text])).tolist() == expected
    with pytest.raises(UserError, match="'June' does not read as that"):
        apply_filters(table, ["taken>=June"])


@pytest.mark.parametrize("kind", [pa.time32("s"), pa.time32("ms"), pa.time64("us")])
def test_times_of_day_are_compared(kind):
    table = pa.table({"at": pa.array([datetime.time(9), datetime.time(10, 30), None], kind)})
    for text, expected in (("at>=10:30:00", [1]), ("at<10:30", [0]), ("at!=09:00:00", [1])):
        assert np.flatnonzero(apply_filters(table, [text])).tolist() == expected
    with pytest.raises(UserError, match="'noon' does not read as that"):
        apply_filters(table, ["at<noon"])


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
def test_numbers_are_compared_as_the_column_holds_them(kind):
    table = pa.table({"rating": pa.array(kind([4.7, 4.8, 0.1, np.nan]))})
    for text, expected in (
        ("rating=4.7", [0]),
        ("rating>=4.7", [0, 1]),
        ("rating<=0.1", [2]),
        ("rating!=4.7", [1, 2]),  # NaN is a missing value
        ("rating<9", [0, 1, 2]),
    ):
        assert np.flatnonzero(apply_filters(table, [text])).tolist() == expected
