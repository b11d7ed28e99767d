"""Few shots of a named data set are drawn from all of its images that are not for testing."""

import pytest

from big_align.evaluators.few_shot import FewShot
from big_align.suites.measuring.evaluator import NamedBenchmark
from big_align.suites.opening import WHOLE, open_named
from tests.suites.measuring import small
from tests.suites.measuring.test_runner import make_embedder

SPLITS = {"train": 3, "valid": 3, "test": 5}
"""Images a class; three shots need six, and four shots eight."""


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    root = tmp_path_factory.mktemp("data")
    for split, count in SPLITS.items():
        for label, name in enumerate(("negative", "positive")):
            folder = root / "rendered-sst2" / split / name
            folder.mkdir(parents=True)
            for number in range(count):
                image = small.draw_image(label, len(split) * 100 + number)
                (folder / f"{number}.png").write_bytes(image)
    return root


@pytest.mark.slow
def test_shots_are_drawn_from_training_and_validation_images(model, data, tmp_path):
    out = tmp_path / "r.csv"
    given = dict(benchmarks="sst2", tasks="few_shot,knn", shots="1,2", draws=2)
    assert small.run(model, data, out, **given) == 0
    rows = small.read_rows(out)
    assert rows["sst2", "few_shot"]["counts"] == {"test": 10, "train": 6, "validation": 6}
    # ALIGN's neighbors are those of the training set.
    assert rows["sst2", "knn"]["counts"] == {"test": 10, "train": 6}
    embedder, tokenizer = make_embedder(model)
    test, drawn = (open_named("sst2", split, str(data)) for split in ("test", WHOLE))
    shots = dict(shots=(1, 2), draws=2)
    transform = small.SEEN.transform
    own = FewShot(test, transform, tokenizer, drawn, names="sst2", **shots)(embedder)
    named = NamedBenchmark("sst2", str(data), transform, tokenizer, "few_shot", **shots)(embedder)
    found = rows["sst2", "few_shot"]["metrics"]
    assert own == pytest.approx(found, abs=1e-6) and named == pytest.approx(found, abs=1e-6)


@pytest.mark.slow
def test_shots_that_a_class_has_too_few_images_for_are_left_out(model, data, tmp_path, caplog):
    numbers = {}
    for shots in ("3", "4,3"):
        out = tmp_path / f"{shots[0]}.csv"
        given = dict(benchmarks="sst2", tasks="few_shot", shots=shots, draws=1)
        assert small.run(model, data, out, **given) == 0
        row = small.read_rows(out)["sst2", "few_shot"]
        assert row["metric"] == "linear_3shot" and row["score"] == row["metrics"]["linear_3shot"]
        numbers[shots] = row["metrics"]
    assert numbers["3"] == numbers["4,3"]
    (line,) = [record.getMessage() for record in caplog.records if "few_shot" in record.message]
    assert line == (
        "sst2 train, few_shot: 4 shots are left out: a class has too few images for them"
    )
