"""The command measures judgments end to end, as plain loops over the model's embeddings do."""

import csv
import itertools

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import spearmanr

from big_align import weights
from big_align.config.components.signatures import make_named
from big_align.config.components.tables import TOKENIZERS
from big_align.evaluators.embedder import Embedder
from big_align.runs.embedding.embed_source import make_encoder
from big_align.suites import catalog
from big_align.suites.benchmark import JUDGED
from big_align.suites.judged.layouts import open_judged
from big_align.suites.judged.scores import bootstrap_correlation
from big_align.suites.measuring.evaluator import NamedBenchmark
from big_align.suites.measuring.judged_tasks import list_judged_numbers
from big_align.use.inference import loaded_model
from tests.suites.judged import small_judgments
from tests.suites.measuring import small

NAMES = catalog.expand(["composition", "similarity"])


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    root = tmp_path_factory.mktemp("data")
    small_judgments.write_all(root)
    return root


@pytest.fixture(scope="module")
def output(model, data, tmp_path_factory):
    path = tmp_path_factory.mktemp("out") / "results.csv"
    names = "composition,similarity"
    page = path.with_suffix(".html")
    assert small.run(model, data, path, benchmarks=names, page=page) == 0
    return path


@pytest.fixture(scope="module")
def rows(output):
    return {name: row for (name, _), row in small.read_rows(output).items()}


@pytest.fixture(scope="module")
def embedded(model, data):
    """What the model makes of the images and texts of a data set, image by image."""
    loaded = loaded_model.load(model, progress=False)

    def embed(name):
        judged = open_judged(catalog.read_benchmark(name), "test", str(data))
        sizes = enumerate(judged.source.shard_sizes.tolist())
        images = [judged.source.read(s, n).image for s, size in sizes for n in range(size)]
        return judged, loaded.embed_images(images), loaded.embed_texts(list(judged.texts))

    return embed


def test_every_data_set_has_the_numbers_that_are_listed(rows):
    assert list(rows) == NAMES
    for name, row in rows.items():
        benchmark = catalog.read_benchmark(name)
        assert tuple(row["metrics"]) == list_judged_numbers(benchmark), name
        assert benchmark.task in JUDGED and row["metric"] == benchmark.metric
        assert all(np.isfinite(list(row["metrics"].values())))


def choose(judged, zimg, ztxt):
    """Whether the first text of each case is nearer than each other one."""
    cases = zip(judged.image[:, 0].tolist(), judged.text.tolist(), strict=True)
    return [all(zimg[i] @ ztxt[t[0]] > zimg[i] @ ztxt[x] for x in t[1:]) for i, t in cases]


@pytest.mark.parametrize("name", NAMES[:1] + NAMES[2:6])
def test_texts_are_chosen_as_a_loop_chooses_them(rows, embedded, name):
    judged, zimg, ztxt = embedded(name)
    right, metrics = choose(judged, zimg, ztxt), rows[name]["metrics"]
    assert metrics["acc"] == pytest.approx(np.mean(right)) and 0 < metrics["acc"] < 1
    per = {
        name: np.mean([r for r, c in zip(right, judged.category, strict=True) if c == name])
        for name in set(judged.category)
    }
    if judged.averaged:
        mean = np.mean([per[name] for name in judged.averaged])
        assert rows[name]["score"] == metrics["mean_of_categories"] == pytest.approx(mean)
        table = {row["class"]: row["accuracy"] for row in rows[name]["per_class"]}
        assert table == pytest.approx(per)
    if name == "sugarcrepe":
        swap = (metrics["acc_swap_obj"] + metrics["acc_swap_att"]) / 2
        assert metrics["acc_swap"] == pytest.approx(swap)
        assert metrics["acc_add_att"] == pytest.approx(per["add_att"])


def test_winoground_is_matched_as_a_loop_matches_it(rows, embedded):
    judged, zimg, ztxt = embedded("winoground")
    text, image = [], []
    for (i, j), (a, b) in zip(judged.image.tolist(), judged.text.tolist(), strict=True):
        s = {(m, t): float(zimg[m] @ ztxt[t]) for m in (i, j) for t in (a, b)}
        text.append(s[i, a] > s[i, b] and s[j, b] > s[j, a])
        image.append(s[i, a] > s[j, a] and s[j, b] > s[i, b])
    metrics = rows["winoground"]["metrics"]
    assert metrics["text_acc"] == pytest.approx(np.mean(text))
    assert metrics["image_acc"] == pytest.approx(np.mean(image))
    group = np.mean(np.logical_and(text, image))
    assert rows["winoground"]["score"] == metrics["group_acc"] == pytest.approx(group)


def find_recall(similarity, right, itself):
    """Recall at 1, 5 and 10 over queries that have something right; a tie is an error."""
    found = []
    for query, mine in sorted(right.items()):
        best = max(similarity[query, c] for c in mine) - 2e-6
        others = {*range(similarity.shape[1])} - mine - ({query} if itself else set())
        before = sum(bool(similarity[query, c] >= best) for c in others)
        found.append([before < k for k in (1, 5, 10)])
    return np.mean(found, axis=0)


def relate(pairs):
    found = {}
    for query, candidate in pairs:
        found.setdefault(query, set()).add(candidate)
    return found


@pytest.mark.slow
def test_crisscrossed_captions_are_measured_as_loops_measure_them(rows, embedded):
    judged, zimg, ztxt = embedded("cxc")
    metrics = rows["cxc"]["metrics"]

    def together(ratings, known, least):
        rated = dict(zip(map(tuple, ratings.pair.tolist()), ratings.rating.tolist(), strict=True))
        return [p for p in {*rated, *known} if rated.get(p, 5.0) >= least]

    own = [(caption, image) for caption, image in enumerate(judged.owner.tolist())]
    across = together(judged.sits, own, 3.0)
    assert len(across) != len(own) and not set(own) <= set(across)
    fellows = [p for p in itertools.combinations(range(35), 2) if p[0] // 5 == p[1] // 5]
    texts = together(judged.sts, fellows, 3.0)
    assert not set(fellows) <= set(texts)
    texts += [(b, a) for a, b in texts]
    images = together(judged.sis, [], 2.5)
    images += [(b, a) for a, b in images]
    expected = {
        "text": find_recall(zimg @ ztxt.T, relate((i, c) for c, i in across), False),
        "image": find_recall(ztxt @ zimg.T, relate(across), False),
        "text_text": find_recall(ztxt @ ztxt.T, relate(texts), True),
        "image_image": find_recall(zimg @ zimg.T, relate(images), True),
    }
    for side, recalls in expected.items():
        measured = [metrics[f"{side}_retrieval_recall@{k}"] for k in (1, 5, 10)]
        assert measured == pytest.approx(recalls), side
    assert rows["cxc"]["score"] == pytest.approx(np.mean(list(expected.values())))
    sides = {"sts": (ztxt, ztxt), "sis": (zimg, zimg), "sits": (ztxt, zimg)}
    for name, (one, other) in sides.items():
        ratings, query = getattr(judged, name), int(name == "sits")
        cosine = np.array([one[a] @ other[b] for a, b in ratings.pair.tolist()])
        found = bootstrap_correlation(cosine, ratings.rating, ratings.pair[:, query])
        assert (metrics[name], metrics[f"{name}_std"]) == pytest.approx(found, abs=0.02)


def test_words_are_compared_by_what_the_text_tower_pools(rows, model, data):
    judged = open_judged(catalog.read_benchmark("simlex999"), "test", str(data))
    loaded = loaded_model.load(model, progress=False)
    text = loaded.tower("text")
    tokens = map(jnp.asarray, loaded.tokenize(list(judged.texts)))
    features, _ = text.model.apply(dict(text.variables), *tokens)
    assert features.shape[1] == small.BERT["width"]  # before the projection
    unit = np.float64(features / np.linalg.norm(features, axis=1, keepdims=True))
    cosine = [unit[a] @ unit[b] for a, b in judged.ratings.pair.tolist()]
    metrics = rows["simlex999"]["metrics"]
    expected = spearmanr(np.round(cosine, 6), judged.ratings.rating).statistic
    assert metrics["spearman"] == rows["simlex999"]["score"] == pytest.approx(expected)
    hard = judged.subsets["hard"]
    expected = spearmanr(np.round(cosine, 6)[hard], judged.ratings.rating[hard]).statistic
    assert metrics["spearman_hard"] == pytest.approx(expected)
    assert rows["simlex999"]["images"] == 0 and rows["simlex999"]["pairs"]["all"] == 8


def test_files_and_page(output):
    with output.open() as file:
        lines = {line["dataset"]: line for line in csv.DictReader(file)}
    assert lines["winoground"]["task"] == "image_caption_selection"
    assert lines["winoground"]["text_acc"] and not lines["cxc"]["text_acc"]
    page = output.with_suffix(".html").read_text()
    assert "SimLex-999, similarity" in page and "ALIGN, Table 12" in page
    assert "ALIGN, Table 3" in page and "0 images" not in page


@pytest.mark.slow
def test_it_continues_and_embeds_every_image_once(model, data, output, monkeypatch, tmp_path):
    seen = []
    inner = Embedder.embeddings_and_features

    def embed(self, batches, count):
        seen.append(count)
        return inner(self, batches, count)

    monkeypatch.setattr(Embedder, "embeddings_and_features", embed)
    before = output.read_bytes()
    assert small.run(model, data, output, benchmarks="composition,similarity") == 0
    assert output.read_bytes() == before and not seen
    # other judgments of the same images: measured again, and no image is embedded
    small_judgments.write_all(tmp_path)
    path = tmp_path / "sugarcrepe/data/add_att.json"
    path.write_text(path.read_text().replace("a photo", "the photo"))
    cache = output.with_suffix(".embeddings")
    other = tmp_path / "other.csv"
    assert small.run(model, tmp_path, other, benchmarks="sugarcrepe", cache=cache) == 0
    assert not seen
    fingerprints = [small.read_rows(x)["sugarcrepe", "composition"] for x in (output, other)]
    assert fingerprints[0]["fingerprint"] != fingerprints[1]["fingerprint"]
    fresh = tmp_path / "fresh.csv"
    assert small.run(model, tmp_path, fresh, benchmarks="sugarcrepe") == 0
    assert sum(seen) == 6


@pytest.mark.slow
def test_a_broken_image_leaves_its_cases_out(model, tmp_path, embedded, capsys):
    small_judgments.write_all(tmp_path)
    (tmp_path / "coco/val2017/000000000002.jpg").write_bytes(b"no image")
    (tmp_path / "coco/val2014/COCO_val2014_000000000003.jpg").write_bytes(b"no image")
    given = dict(benchmarks="sugarcrepe,cxc", max_broken_fraction=0.5)
    assert small.run(model, tmp_path, tmp_path / "r.csv", **given) == 0
    found = small.read_rows(tmp_path / "r.csv")
    judged, zimg, ztxt = embedded("sugarcrepe")
    kept = judged.image[:, 0] != 2
    right = np.array(choose(judged, zimg, ztxt))[kept]
    row = found["sugarcrepe", "composition"]
    assert row["cases"] == kept.sum() < len(kept)
    assert row["metrics"]["acc"] == pytest.approx(right.mean())
    assert found["cxc", "similarity"]["queries"]["text"] == 6


def test_an_image_tower_alone_says_what_it_lacks(tmp_path, data, capsys):
    model = small.save_model(tmp_path / "tower", text=False)
    given = dict(benchmarks="winoground,simlex999", transform="resize(8)")
    assert small.run(model, data, tmp_path / "r.csv", **given) == 1
    said = capsys.readouterr().out
    assert "winoground: the model has no text tower, which composition needs" in said
    assert "simlex999: the model has no text tower, which similarity needs" in said


def test_a_text_tower_alone_is_measured_by_its_words(rows, model, data, tmp_path, capsys):
    tower = loaded_model.load(model, progress=False).tower("text")
    weights.save(tmp_path / "tower", tower, "big_align")
    given = dict(benchmarks="winoground,simlex999")
    output = tmp_path / "r.csv"
    assert small.run(tmp_path / "tower", data, output, **given) == 0
    said = capsys.readouterr().out
    assert "winoground: the model has no image tower, which composition needs" in said
    (row,) = small.read_rows(output).values()
    assert row["metrics"] == pytest.approx(rows["simlex999"]["metrics"])
    assert row["settings"]["model"] != rows["simlex999"]["settings"]["model"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sugarcrepe", "winoground", "cxc", "simlex999"])
def test_a_run_reports_the_same_numbers(rows, model, data, name):
    loaded = loaded_model.load(model, progress=False)
    encoder = make_encoder(loaded, "both", None, 16)
    evaluator = NamedBenchmark(
        name, str(data), encoder.transform, make_named(TOKENIZERS, small.TOKENIZER, "tokenizer")
    )
    numbers = evaluator(encoder.embedder)
    assert tuple(numbers) == evaluator.numbers
    assert numbers == pytest.approx(rows[name]["metrics"], abs=1e-6)
    needs = NamedBenchmark.needs({"benchmark": name})
    words = name == "simlex999"
    assert needs == (("text_features",) if words else ("embed_image", "embed_text"))
