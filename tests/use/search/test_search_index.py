"""A search is the order of cosines with a sum of embeddings, among the rows that may be found."""

import pathlib
import weakref

import jax
import numpy as np
import pytest
from indexes import TEXTS, build, load, write_photos

import big_align
from big_align.core.errors import UserError
from big_align.use.inference import loaded_model
from big_align.use.search import search_index
from big_align.use.search.search_index import Hit
from big_align.use.search.stores import folder_store
from tests.use.inference.test_loaded_model import DUAL, SEEN, TOKENIZER, make_pretrained


@pytest.fixture(scope="module")
def index(table_index, model):
    return load(table_index, model)


def test_an_index_tells_in_a_line_what_it_holds(index, table_index):
    counts = f"20 images and {len(index.store.contents.captions)} captions, embeddings of 16"
    columns = ", ".join(index.columns)
    assert repr(index) == f"<SearchIndex of {table_index}: {counts}; metadata: {columns}>"
    assert columns.startswith("year") or "year" in columns


def rank(index, vector, of="images", rows=None):
    """The numbers of rows by their cosines, computed plainly."""
    vectors = np.float32(index.store.contents.vectors[of])
    order = np.argsort(-(vectors @ vector), kind="stable")
    return [int(row) for row in order if rows is None or row in rows]


def unit(vector):
    return vector / np.linalg.norm(vector)


def test_one_text_ranks_as_the_model_does(index, model):
    hits = index.search("a red dog", k=7)
    expected = model.rank("a red dog", np.float32(index.store.contents.vectors["images"]), k=7)
    assert [hit.row for hit in hits] == expected.order[0].tolist()
    np.testing.assert_allclose([hit.score for hit in hits], expected.cosine[0], atol=1e-6)


def test_images_and_texts_are_added_and_subtracted_with_their_weights(index, model, table_index):
    path = f"{table_index.parent}/photos/04.jpg"
    (zimg,), (dog, cat) = model.embed_images([path]), model.embed_texts(["a dog", "a red cat"])
    given = ["a dog", "-a red cat"]
    for weights, vector in (
        (None, 2 * dog - 2 * cat + zimg),
        ([1, 0.5, 3], dog - 0.5 * cat + 3 * zimg),
        ([0, -1, 0], cat),
    ):
        hits = index.search(given, [path], weights=weights, k=20)
        assert [hit.row for hit in hits] == rank(index, unit(vector))
        np.testing.assert_allclose(
            hits[0].score, unit(vector) @ index.read_vector(hits[0].row), atol=1e-5
        )
    arrays = np.random.default_rng(0).integers(0, 256, (2, 30, 40, 3)).astype(np.uint8)
    assert index.search(images=arrays, k=3) == index.search(images=list(arrays), k=3)
    alone = index.search(images=path, k=1)[0]
    assert alone.row == 4 and alone.score == pytest.approx(1, abs=1e-4)


def test_a_search_is_the_same_under_a_mesh_of_the_caller(index, table_index):
    path = f"{table_index.parent}/photos/04.jpg"
    expected = index.search("a dog", path, k=5)
    with jax.set_mesh(jax.make_mesh((2,), ("x",), devices=jax.devices()[:2])):
        assert index.search("a dog", path, k=5) == expected


def test_scores_are_cosines_of_rows_that_are_stored_in_float16(model, tmp_path):
    photos = write_photos(tmp_path / "photos", {f"{n:02d}.jpg": n for n in range(20)})
    build(model, photos, tmp_path / "index")
    index = load(tmp_path / "index", model)
    assert index.store.contents.vectors["images"].dtype == np.float16
    for row in range(20):
        (hit,) = index.search(like=row, k=1)
        assert hit.row == row and hit.score == pytest.approx(1, abs=1e-6)


def test_an_image_of_the_index_needs_no_model(table_index):
    index = big_align.load_index(table_index)  # its model is nowhere
    name = index.store.contents.images["name"][3].as_py()
    assert [hit.row for hit in index.search(like=[name], k=20)] == rank(index, index.read_vector(3))
    assert index.search(like=[3], k=2) == index.search(like=[name], k=2)
    with pytest.raises(UserError, match="nowhere.*give the model of the index by --model"):
        index.search("a dog")


def test_one_and_several_are_given_in_any_form(index):
    name = index.store.contents.images["name"][3].as_py()
    expected = index.search(like=[3], k=5)
    for like in (3, np.int64(3), [np.int64(3)], np.array([3]), name, [pathlib.Path(name)]):
        assert index.search(like=like, k=5) == expected
    vector = index.read_vector(3)
    for given in (vector, vector[None], 5 * vector, np.float64(vector)):
        hits = index.search_vector(given, k=5)
        assert [hit.row for hit in hits] == [hit.row for hit in expected]
        assert hits[0].score == pytest.approx(1, abs=1e-6)
    some = index.search("a dog", filters=["year>=2004"], k=20)
    assert index.search("a dog", filters="year>=2004", k=20) == some and 0 < len(some) < 20


@pytest.mark.parametrize(
    "vector", [np.ones(5), np.ones((2, 16)), np.zeros(16), np.full(16, np.nan), np.ones((1, 1, 16))]
)
def test_what_is_no_embedding_is_told(index, vector):
    with pytest.raises(UserError, match="it must be one embedding of 16 finite numbers"):
        index.search_vector(vector)


def test_a_hit_tells_what_is_known_of_an_image(index):
    (hit,) = index.search(like=[8], k=1)
    assert hit == Hit(8, hit.score, hit.name, [TEXTS[3]], {"year": 2001, "place": None})
    assert hit.name.endswith("photos/08.jpg")


def test_captions_are_found_with_an_image_that_has_them(index, model):
    hits = index.search("a red dog", of="captions", k=9)
    expected = rank(index, model.embed_texts("a red dog")[0], "captions")
    texts = index.store.contents.captions["text"].to_pylist()
    assert [hit.captions for hit in hits] == [[texts[n]] for n in expected]
    assert all(TEXTS[hit.row % 5] == hit.captions[0] and hit.row < 5 for hit in hits)


@pytest.mark.parametrize("of", ["images", "captions"])
def test_a_filter_is_a_search_among_a_slice(index, of):
    filters = ["year>=2004", "place=Bern"]
    rows = {n for n in range(20) if 2000 + n % 7 >= 2004 and n % 3 == 0}
    allowed = rows if of == "images" else {n % 5 for n in rows}
    hits = index.search("a red dog", k=20, of=of, filters=filters)
    vector = index.embed_text("a red dog")
    numbers = rank(index, vector, of, allowed)
    if of == "images":
        assert [hit.row for hit in hits] == numbers
    else:
        assert [hit.captions[0] for hit in hits] == [TEXTS[n] for n in numbers]
        assert all(hit.row in rows for hit in hits)
    assert index.search("a dog", filters=["year=1900"], of=of) == []


@pytest.mark.usefixtures("without_type_checks")
@pytest.mark.parametrize(
    "given, message",
    [
        ({}, "the query is empty"),
        ({"texts": "a", "k": 2.0}, "k is 2.0; it must be a whole number from 1 to"),
        ({"texts": "a", "weights": 2}, "weights = 2: give a list of numbers, one for each text"),
        ({"texts": "a", "weights": [[1, 2]]}, r"weights = \[\[1, 2\]\]: give a list of numbers"),
        ({"texts": "a", "weights": ["x"]}, r"weights = \['x'\]: give a list of numbers"),
        ({"texts": ["a", "b"], "weights": [1, None]}, r"weights = \[1, None\]: give a list of num"),
        ({"texts": "a", "k": 0}, "k is 0; it must be a whole number from 1 to"),
        ({"texts": "a", "of": "words"}, "of = 'words' is neither 'images' nor 'captions'"),
        ({"like": [20]}, "there is no image 20; the index has 20"),
        ({"like": 3.5}, "there is no image 3.5; the index has 20"),
        ({"like": ["x.jpg"]}, "the index has no image 'x.jpg'"),
        ({"images": "none.jpg"}, "none.jpg: there is no such file$"),  # no advice for others
        ({"texts": "a", "filters": ["day=3"]}, "no column 'day'"),
    ],
)
def test_what_cannot_be_searched_is_told(index, given, message):
    with pytest.raises(UserError, match=message):
        index.search(**given)


def test_a_model_of_other_weights_is_refused(table_index):
    other = make_pretrained(DUAL, preprocessing=SEEN, tokenizer=TOKENIZER)
    variables = jax.tree.map(lambda x: 2 * x, dict(other.variables))
    doubled = loaded_model.LoadedModel.of(other, variables=variables)
    with pytest.raises(UserError, match="has other weights than the model of"):
        load(table_index, doubled).search("a dog")


def test_a_model_of_other_colors_or_another_tokenizer_is_refused(table_index, model, tmp_path):
    colors = loaded_model.LoadedModel.of(model, node=DUAL | {"image_mean": (0.9, 0.2, 0.3)})
    words = TOKENIZER | {"words": TOKENIZER["words"][::-1]}
    reader = loaded_model.LoadedModel.of(model, tokenizer=words)
    photo = f"{table_index.parent}/photos/04.jpg"
    with pytest.raises(UserError, match="the given model has another architecture than"):
        load(table_index, colors).search(images=photo)
    with pytest.raises(UserError, match="has another tokenizer than the model of"):
        load(table_index, reader).search("a dog")
    assert load(table_index, reader).search(images=photo, k=1)[0].row == 4
    smaller = loaded_model.LoadedModel.of(model.with_transform("resize(9)|central_crop(8)"))
    with pytest.raises(UserError, match="has another transform than the model of"):
        load(table_index, smaller).search(images=photo)
    table, settings = f"{table_index.parent}/photos/photos.csv", {"dtype": "float32"}
    for other, message in ((colors, "architecture is"), (reader, "tokenizer is")):
        with pytest.raises(UserError, match=message):
            build(other, table, table_index, settings=settings)


@pytest.mark.slow
def test_an_image_tower_alone_makes_an_index_of_images(weights, tmp_path):
    model = big_align.load(weights, batch_size=16, progress=False).tower("image")
    build(model, write_photos(tmp_path / "photos", {"1.jpg": 1, "2.jpg": 2}), tmp_path / "index")
    index = load(tmp_path / "index", model)
    assert index.search(images=f"{tmp_path}/photos/2.jpg", k=1)[0].row == 1
    with pytest.raises(UserError, match="the model has no text tower"):
        index.search("a dog")
    with pytest.raises(UserError, match="has no captions that can be searched"):
        index.search(like=[0], of="captions")


class FirstRows:
    """In place of ScaNN: finds the nearest of every third row alone."""

    def __init__(self, vectors):
        self._vectors = np.float32(vectors)

    def search(self, queries, k):
        order = np.argsort(-(queries @ self._vectors[::3].T), axis=1)[:, :k] * 3
        return np.pad(order, ((0, 0), (0, k - order.shape[1])), constant_values=-1)


def test_candidates_are_rescored_filtered_and_made_up_for(index, monkeypatch):
    """Where candidates that meet the conditions are too few, all that meet them are compared."""
    monkeypatch.setattr(folder_store, "EXACT_BELOW", 1)
    given = load(index._address, index.model)
    monkeypatch.setattr(
        type(given.store), "_scann", lambda self, kind: FirstRows(self.contents.vectors[kind])
    )
    vector = given.embed_text("a red dog")
    found, score = given.store.find("images", vector[None], 3)
    thirds = rank(given, vector, rows=set(range(0, 20, 3)))
    assert found[0].tolist() == thirds[:3]
    cosines = given.store.contents.vectors["images"] @ vector
    np.testing.assert_allclose(score[0], cosines[thirds[:3]], atol=1e-6)
    mask = np.arange(20) % 2 == 0
    found, _ = given.store.find("images", vector[None], 3, mask)
    assert found[0].tolist() == rank(given, vector, rows=set(range(0, 20, 6)))[:3]
    mask = np.arange(20) % 3 != 0  # none of the candidates
    found, _ = given.store.find("images", vector[None], 3, mask)
    assert found[0].tolist() == rank(given, vector, rows=set(np.flatnonzero(mask)))[:3]


def test_an_index_that_is_no_longer_used_is_freed(table_index, model):
    """Its arrays and searchers take gigabytes, and no collector need find it."""
    index = load(table_index, model)
    index.warm()
    assert index.search("a dog", filters="year>2001", of="captions")
    there = weakref.ref(index)
    del index
    assert there() is None


def test_the_face_names_it():
    assert big_align.load_index is search_index.load_index
