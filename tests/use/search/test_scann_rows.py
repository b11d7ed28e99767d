"""ScaNN's recall is what comparing with all tells, and its settings reach what was asked for."""

import json
import shutil
import sys

import numpy as np
import pytest
from indexes import build, load, write_photos, write_table

from big_align.core.errors import UserError
from big_align.use.search.stores import scann_rows, trained_search
from big_align.use.search.stores.exact_search import search_exactly
from big_align.use.search.stores.recall import choose_settings, measure_recall
from big_align.use.search.stores.scann_rows import ScannRows, ScannSettings

pytestmark = pytest.mark.slow  # TensorFlow takes seconds


def draw(count, seed):
    rng = np.random.default_rng(seed)
    middles = np.random.default_rng(9).normal(size=(20, 16))
    rows = middles[rng.integers(0, 20, count)] + 0.5 * rng.normal(size=(count, 16))
    return np.float32(rows / np.linalg.norm(rows, axis=1, keepdims=True))


def exact(vectors):
    return lambda queries, k: search_exactly(queries, vectors, k)[0]


@pytest.fixture(scope="module")
def rows():
    return ScannRows.build(draw(3000, 0))


def test_recall_is_counted_by_hand():
    true = np.array([[1, 2, 3, 4], [5, 6, 7, 8]])
    assert measure_recall(np.array([[4, 1, 0, 9], [8, 7, 6, 5]]), true) == 6 / 8
    assert measure_recall(np.array([[-1, -1], [-1, 5]]), true) == 1 / 8


def test_what_is_reported_is_what_a_search_reaches(rows):
    vectors, given = draw(3000, 0), draw(200, 1)
    numbers = np.arange(0, 3000, 30)
    queries = {"own": (vectors[numbers], numbers), "other": (given, np.full(200, -1))}
    measured, recalls = choose_settings(rows, exact(vectors), queries, 0.9)
    assert measured.recall == min(recalls.values()) >= 0.9
    true = search_exactly(given, vectors, 10)[0]
    found = rows.search(given, 10, measured.settings)
    assert measure_recall(found, true) == pytest.approx(recalls["other"])
    order = search_exactly(vectors[numbers], vectors, 11)[0]
    assert (order[:, 0] == numbers).all()  # each is nearest to itself, which does not count
    found = rows.search(vectors[numbers], 11, measured.settings)
    hits = [len(set(f) & set(t[1:])) for f, t in zip(found.tolist(), order.tolist(), strict=True)]
    assert recalls["own"] == pytest.approx(np.mean(hits) / 10, abs=0.02)


def test_a_higher_recall_searches_more_and_what_cannot_be_reached_is_told(rows):
    vectors, given = draw(3000, 0), draw(200, 1)
    queries = {"other": (given, np.full(200, -1))}
    low, _ = choose_settings(rows, exact(vectors), queries, 0.3)
    high, _ = choose_settings(rows, exact(vectors), queries, 0.97)
    assert low.settings.searched < high.settings.searched
    none, _ = choose_settings(rows, exact(vectors), queries, 1.01)
    assert none.recall < 1.01 and none.recall >= high.recall


def test_saved_rows_search_alike_wherever_they_lie(rows, tmp_path):
    settings = ScannSettings(*rows.settings[:1], 20, 10)
    rows.save(tmp_path / "saved")
    shutil.move(tmp_path / "saved", tmp_path / "moved")
    loaded = ScannRows.load(tmp_path / "moved", settings)
    np.testing.assert_array_equal(
        loaded.search(draw(9, 1), 10), rows.search(draw(9, 1), 10, settings)
    )
    (tmp_path / "moved" / "scann_docids.pkl").touch()
    with pytest.raises(UserError, match="holds a pickle"):
        ScannRows.load(tmp_path / "moved", settings)
    with pytest.raises(UserError, match="cannot be read"):
        ScannRows.load(tmp_path / "none", settings)


def test_an_index_notes_its_recall_and_searches_by_scann(model, tmp_path, monkeypatch):
    source = write_photos(tmp_path / "photos", {f"{n:03d}.jpg": n for n in range(120)})
    report = build(model, source, tmp_path / "index", method="scann", recall=0.9)
    noted = json.loads((tmp_path / "index/index.json").read_text())["search"]["images"]
    assert noted == report.search["images"] and noted["method"] == "scann"
    assert set(noted["recall@10"]) == {"images", "names of classes"}
    assert min(noted["recall@10"].values()) >= 0.9
    index = load(tmp_path / "index", model)
    exact = search_exactly(
        index.embed_text("a dog")[None], index.store.contents.vectors["images"], 10
    )
    found, score = index.store.search("images", index.embed_text("a dog")[None], 10)
    assert measure_recall(found, exact[0]) >= 0.8
    np.testing.assert_allclose(score[0, 0], exact[1][0, 0], atol=1e-6)
    vectors = np.float32(index.store.contents.vectors["images"])
    found, _ = index.store.search("images", vectors, 3)  # fewer are found no worse than ten
    assert measure_recall(found, search_exactly(vectors, vectors, 3)[0]) >= 0.9
    assert np.mean([index.search(like=[row], k=3)[0].row == row for row in range(20)]) >= 0.95
    with pytest.raises(UserError, match="ScaNN finds .* less than 1.01; give a lower --recall"):
        build(model, source, tmp_path / "index", method="scann", recall=1.01)
    assert len(load(tmp_path / "index", model)) == 120  # what was there still is


def test_without_scann_the_search_stays_exact(model, tmp_path, monkeypatch, caplog):
    source = write_photos(tmp_path / "photos", {f"{n:03d}.jpg": n for n in range(60)})
    monkeypatch.setattr(trained_search, "EXACT_BELOW", 50)
    monkeypatch.setitem(sys.modules, "scann", None)  # as if it were not installed
    report = build(model, source, tmp_path / "index")
    assert report.search["images"] == {"method": "exact", "rows": 60}
    assert "ScaNN is not installed: the search of images stays exact" in caplog.text
    with pytest.raises(UserError, match="needs the package scann .* with --search=exact"):
        build(model, source, tmp_path / "index", method="scann")


@pytest.mark.parametrize("count", [15, 16])
def test_few_rows_are_searched_exactly(model, tmp_path, count):
    """The captions are five, whatever the images."""
    report = build(model, write_table(tmp_path, count), tmp_path / "index", method="scann")
    methods = {kind: noted["method"] for kind, noted in report.search.items()}
    assert methods == {"images": "exact" if count < 16 else "scann", "captions": "exact"}
    assert load(tmp_path / "index", model).search("a dog", of="captions", k=5)[4].score <= 1


def test_where_the_recall_is_not_reached_the_search_stays_exact(
    model, tmp_path, monkeypatch, caplog
):
    source = write_photos(tmp_path / "photos", {f"{n:03d}.jpg": n for n in range(60)})
    monkeypatch.setattr(trained_search, "EXACT_BELOW", 50)
    monkeypatch.setattr(scann_rows, "SEARCHED", (0.01,))
    report = build(model, source, tmp_path / "index", recall=1.0)
    assert report.search["images"]["method"] == "exact"
    assert report.search["images"]["tried"]["recall@10"]["images"] < 1
    assert "less than 1: the search of images stays exact" in caplog.text
    index = load(tmp_path / "index", model)
    assert [hit.row for hit in index.search(like=[5], k=60)][0] == 5
