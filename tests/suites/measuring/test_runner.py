"""One command measures what evaluators measure; it continues, and embeds every image once."""

import csv
import functools
import json
import re
import shutil
import tarfile

import numpy as np
import pytest

from big_align.config.components.signatures import make_named
from big_align.config.components.tables import TOKENIZERS
from big_align.core.errors import BrokenDataError, UserError
from big_align.data.derived import source_pieces
from big_align.data.precomputed import shard_files
from big_align.evaluators.embedder import Embedder
from big_align.evaluators.few_shot import FewShot
from big_align.evaluators.knn import KNN
from big_align.evaluators.linear_probe import LinearProbe
from big_align.evaluators.retrieval import Retrieval
from big_align.evaluators.zero_shot import ZeroShot
from big_align.runs.embedding import embed_source
from big_align.suites import catalog
from big_align.suites.measuring.evaluator import NamedBenchmark
from big_align.suites.measuring.measurer import Measurer
from big_align.suites.measuring.page import write_page
from big_align.suites.measuring.results import ResultFiles
from big_align.suites.opening import open_split
from big_align.use.inference import loaded_model
from tests.data.samples import write_tar
from tests.suites.measuring import small

QUICK = dict(benchmarks="cifar10,flickr8k", tasks="zero_shot,knn,retrieval")
FITTED = dict(benchmarks="cifar10", tasks="linear_probe,few_shot", shots="1", draws=1)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    root = tmp_path_factory.mktemp("data")
    small.write_cifar(root)
    small.write_flickr(root)
    small.write_flickr(root, "flickr8k_multilingual")
    return root


@pytest.fixture(scope="module")
def output(model, data, tmp_path_factory):
    """The results of the tasks that fit nothing, and a page of them."""
    path = tmp_path_factory.mktemp("out") / "results.csv"
    assert small.run(model, data, path, **QUICK, page=path.with_suffix(".html")) == 0
    return path


@pytest.fixture(scope="module")
def fitted(model, data, output):
    """The same file with the tasks that fit classifiers."""
    path = output.with_name("fitted.csv")
    for ending in (".csv", ".json"):
        shutil.copy(output.with_suffix(ending), path.with_suffix(ending))
    cache = output.with_suffix(".embeddings")
    assert small.run(model, data, path, **FITTED, cache=cache) == 0
    return path


@pytest.fixture
def counted(monkeypatch):
    """Counts the images that towers see."""
    seen = []

    def wrap(name):
        inner = getattr(Embedder, name)

        def embed(self, batches, count):
            batches = [dict(batch) for batch in batches]
            seen.append(sum(int(batch["mask"].sum()) for batch in batches))
            return inner(self, batches, count)

        monkeypatch.setattr(Embedder, name, embed)

    for name in ("embed_images", "image_features", "embeddings_and_features"):
        wrap(name)
    return seen


def make_embedder(model):
    loaded = loaded_model.load(model, progress=False)
    encoder = embed_source.make_encoder(loaded, "both", None, 16)
    return encoder.embedder, make_named(TOKENIZERS, small.TOKENIZER, "tokenizer")


@pytest.mark.slow
def test_stored_embeddings_give_the_numbers_of_the_evaluators(model, data, fitted):
    embedder, tokenizer = make_embedder(model)
    cifar, transform = catalog.read_benchmark("cifar10"), small.SEEN.transform
    test, train = (open_split(cifar, split, str(data)) for split in ("test", "train"))
    given, rows = (test, transform), small.read_rows(fitted)
    names = dict(names="cifar10")

    def check(task, expected, **columns):
        found = rows["cifar10" if task != "retrieval" else "flickr8k", task]["metrics"]
        for column, name in columns.items():
            assert found[column.replace("_AT_", "@")] == pytest.approx(expected[name], abs=1e-6)

    zero_shot = ZeroShot(*given, tokenizer, **names)(embedder)
    check("zero_shot", zero_shot, acc1="top1", acc5="top5", mean_per_class_recall="mean_per_class")
    assert 0 < zero_shot["top1"] < 1
    probe = LinearProbe(*given, train)(embedder)
    check("linear_probe", probe, lp_acc1="accuracy", lp_validation="validation_accuracy")
    check("linear_probe", probe, lp_strength="strength")
    few = FewShot(*given, tokenizer, train, **names, shots=(1,), draws=1, temperature=0.01)
    check("few_shot", few(embedder), **{name: name for name in few.numbers})
    check("knn", KNN(*given, train, ks=(1, 5))(embedder), knn_r1="r1", knn_r5="r5")
    flickr = open_split(catalog.read_benchmark("flickr8k"), "test", str(data))
    found = Retrieval(flickr, transform, tokenizer)(embedder)
    for k in (1, 5, 10):
        columns = {f"image_retrieval_recall_AT_{k}": f"text_to_image_r{k}"}
        check("retrieval", found, **columns)
        check("retrieval", found, **{f"text_retrieval_recall_AT_{k}": f"image_to_text_r{k}"})
    mean = rows["flickr8k", "retrieval"]["metrics"]["mean_recall"]
    recalls = [value for name, value in found.items() if re.search(r"_r\d+$", name)]
    assert len(recalls) == 6 and mean == pytest.approx(np.mean(recalls), abs=1e-6)


@pytest.mark.slow
def test_the_evaluator_of_a_run_reports_what_the_command_does(model, data, fitted):
    embedder, tokenizer = make_embedder(model)
    embedder._objective.scale = lambda params: 1 / 0.1  # as the saved model says
    for (name, task), row in small.read_rows(fitted).items():
        evaluate = NamedBenchmark(
            name, str(data), small.SEEN.transform, tokenizer, task, shots=(1,), draws=1
        )
        found = evaluate(embedder)
        assert set(found) == set(evaluate.numbers)
        assert found == pytest.approx(row["metrics"], abs=1e-6)


@pytest.mark.slow
def test_templates_that_are_given_come_before_those_of_the_data_set(model, data, tmp_path):
    """IDEA, A.2: one list of prompts for nearly all data sets."""
    embedder, tokenizer = make_embedder(model)
    transform, named = small.SEEN.transform, catalog.read_benchmark("cifar10")
    source = open_split(named, "test", str(data))
    options = dict(names="cifar10", templates=("a {}",))
    expected = ZeroShot(source, transform, tokenizer, **options)(embedder)["top1"]
    benchmark = functools.partial(NamedBenchmark, "cifar10", str(data), transform, tokenizer)
    found = benchmark(templates=("a {}",))(embedder)["acc1"]
    assert found == pytest.approx(expected, abs=1e-6)
    assert benchmark()(embedder)["acc1"] != found
    output = tmp_path / "r.csv"
    own = list(named.classes().templates)
    for given, templates in ((dict(template="a {}"), ["a {}"]), ({}, own)):
        assert small.run(model, data, output, benchmarks="cifar10", **given) == 0
        row = json.loads(output.with_suffix(".json").read_text())[-1]
        assert row["settings"]["templates"] == templates
        assert (row["metrics"]["acc1"] == pytest.approx(found, abs=1e-6)) == bool(given)


@pytest.mark.slow
def test_a_run_that_was_killed_ends_in_the_same_file(model, data, output, tmp_path, monkeypatch):
    inner, done = Measurer.measure, []

    def measure(self, task):
        if len(done) in (1, 3):
            done.append("killed")
            raise KeyboardInterrupt
        done.append(task)
        return inner(self, task)

    monkeypatch.setattr(Measurer, "measure", measure)
    again = tmp_path / "again.csv"
    cache = output.with_suffix(".embeddings")
    for _ in range(2):
        assert small.run(model, data, again, **QUICK, cache=cache) == 130
    assert small.run(model, data, again, **QUICK, cache=cache) == 0
    assert again.read_bytes() == output.read_bytes()
    assert done == ["zero_shot", "killed", "knn", "killed", "retrieval"]

    def without_times(path):
        return [row | {"seconds": 0} for row in json.loads(path.with_suffix(".json").read_text())]

    assert without_times(again) == without_times(output)


def test_what_is_embedded_is_kept_when_embedding_is_killed(
    model, data, tmp_path, monkeypatch, counted
):
    monkeypatch.setattr(source_pieces, "PIECE", 16)
    inner, written = shard_files.write_shard, []

    def write(*arguments):
        if len(written) == 2:
            raise KeyboardInterrupt
        written.append(arguments)
        inner(*arguments)

    monkeypatch.setattr(shard_files, "write_shard", write)
    out = tmp_path / "results.csv"
    assert small.run(model, data, out, benchmarks="cifar10") == 130
    monkeypatch.setattr(shard_files, "write_shard", inner)
    counted.clear()
    assert small.run(model, data, out, benchmarks="cifar10") == 0
    assert sum(counted) == 40 - 2 * 16


@pytest.mark.slow
def test_benchmarks_and_tasks_of_the_same_images_embed_them_once(
    model, data, tmp_path, counted, capsys
):
    given = dict(benchmarks="flickr8k,flickr8k_multilingual,cifar10", tasks="zero_shot,knn")
    given["tasks"] += ",retrieval"
    assert small.run(model, data, tmp_path / "one.csv", **given, cache=tmp_path / "cache") == 0
    # Flickr8k's 12 images are those of the four languages; then CIFAR's of both splits.
    assert sum(counted) == 12 + 40 + 80
    counted.clear()
    assert small.run(model, data, tmp_path / "two.csv", **given, cache=tmp_path / "cache") == 0
    assert counted == []
    one, two = ((tmp_path / name).read_bytes() for name in ("one.csv", "two.csv"))
    assert one == two
    small.run(model, data, tmp_path / "two.csv", **given, cache=tmp_path / "cache")
    assert "0 results now, 7 in all" in capsys.readouterr().out


def test_corrected_labels_are_measured_again_with_what_was_embedded(
    model, tmp_path, counted, capsys
):
    small.write_cifar(tmp_path)
    given = dict(benchmarks="cifar10", tasks="zero_shot")
    assert small.run(model, tmp_path, tmp_path / "r.csv", **given) == 0
    (row,) = small.read_rows(tmp_path / "r.csv").values()
    folder = tmp_path / "cifar10"
    for path in folder.glob("test-*.tar"):
        with tarfile.open(path) as shard:
            members = [(m.name, shard.extractfile(m).read()) for m in shard]
        write_tar(path, [(n, b"3" if n.endswith("cls") else data) for n, data in members])
    counted.clear()
    assert small.run(model, tmp_path, tmp_path / "r.csv", **given) == 0
    assert counted == [] and "1 results now" in capsys.readouterr().out
    (after,) = small.read_rows(tmp_path / "r.csv").values()
    assert [len(each["per_class"]) for each in (row, after)] == [10, 1]


@pytest.mark.slow
def test_the_order_of_shards_changes_no_number(model, data, output, tmp_path):
    small.write_cifar(tmp_path)
    folder = tmp_path / "cifar10"
    (folder / "test-00000.tar").rename(folder / "test-00009.tar")
    assert small.run(model, tmp_path, tmp_path / "r.csv", benchmarks="cifar10") == 0
    (row,) = small.read_rows(tmp_path / "r.csv").values()
    before = small.read_rows(output)["cifar10", "zero_shot"]
    assert row["fingerprint"] != before["fingerprint"]
    assert row["metrics"] == pytest.approx(before["metrics"], abs=1e-6)
    assert row["per_class"] == before["per_class"]


def test_tables_have_the_columns_of_clip_benchmark_and_everything_else(output):
    with open(output) as file:
        rows = list(csv.DictReader(file))
    columns = ["dataset", "model", "pretrained", "task"]
    assert list(rows[0])[:4] == columns
    assert {"acc1", "acc5", "mean_per_class_recall", "lp_acc1", "model_fullname"} <= rows[0].keys()
    assert rows[0]["acc1"] and not rows[1]["acc1"] and not rows[0]["lp_acc1"]
    assert {"image_retrieval_recall@5", "text_retrieval_recall@5"} <= rows[0].keys()
    assert [(row["dataset"], row["task"]) for row in rows] == [
        ("cifar10", "zeroshot_classification"), ("cifar10", "knn"),
        ("flickr8k", "zeroshot_retrieval"),
    ]  # fmt: skip
    for row in small.read_rows(output).values():
        assert float(row["score"]) in row["metrics"].values()
    zero_shot = small.read_rows(output)["cifar10", "zero_shot"]
    assert zero_shot["counts"] == {"test": 40} and len(zero_shot["per_class"]) == 10
    recalls = [one["recall"] for one in zero_shot["per_class"]]
    assert np.mean(recalls) == pytest.approx(zero_shot["metrics"]["mean_per_class_recall"])
    assert sum(map(sum, zero_shot["confusions"][0]["counts"])) == 40
    assert zero_shot["settings"]["transform"] == small.SEEN.transform


def test_the_page_has_bars_and_needs_no_other_file(output):
    page = output.with_suffix(".html").read_text()
    assert not re.search(r"src=|https?:", page)
    assert "MLCD, Table 2" in page and "IDEA, Table 2" in page and "this model" in page
    assert page.count("Confused classes") == 1
    score = small.read_rows(output)["cifar10", "zero_shot"]["score"]
    assert f"<span>{100 * score:.1f}</span>" in page


def test_what_is_missing_is_a_line_and_the_others_go_on(model, data, tmp_path, capsys):
    out = tmp_path / "results.csv"
    names = "food101,cifar10,winoground,imagenet_a"
    assert small.run(model, data, out, benchmarks=names, tasks="knn") == 0
    lines = capsys.readouterr().out.splitlines()
    (missing,) = [line for line in lines if line.startswith("food101")]
    assert "not in" in missing and "tfds build food101" in missing
    (trained,) = [line for line in lines if line.startswith("imagenet_a")]
    assert "no images to train on, which knn needs" in trained
    (unfit,) = [line for line in lines if line.startswith("winoground")]
    assert "composition" in unfit
    assert list(small.read_rows(out)) == [("cifar10", "knn")]
    assert small.run(model, data, tmp_path / "none.csv", benchmarks="food101") == 1
    assert "nothing was measured" in capsys.readouterr().out
    assert not (tmp_path / "none.csv").exists()


def test_a_task_that_fails_is_a_line_and_the_others_go_on(model, tmp_path, capsys):
    small.write_cifar(tmp_path, train=30)
    given = dict(benchmarks="cifar10", tasks="few_shot,knn", shots=4)
    assert small.run(model, tmp_path, tmp_path / "r.csv", **given) == 1
    assert "cifar10, few_shot: few_shot.train_source: class 0 has 3" in capsys.readouterr().out
    assert list(small.read_rows(tmp_path / "r.csv")) == [("cifar10", "knn")]


def test_a_model_without_texts_is_measured_where_it_can_be(data, tmp_path, capsys):
    tower = small.save_model(tmp_path / "tower", text=False)
    given = dict(benchmarks="cifar10,flickr8k", tasks="zero_shot,knn,retrieval")
    assert small.run(tower, data, tmp_path / "r.csv", **given) == 0
    said = capsys.readouterr().out
    assert "cifar10: the model has no text tower, which zero_shot needs" in said
    assert "flickr8k: the model has no text tower, which retrieval needs" in said
    assert list(small.read_rows(tmp_path / "r.csv")) == [("cifar10", "knn")]


@pytest.mark.parametrize(
    "flags, said",
    [
        (dict(benchmarks="cifar11"), "no benchmark or suite 'cifar11' (did you mean 'cifar10'?)"),
        (
            dict(benchmarks="nope"),
            "no benchmark or suite 'nope'; python -m big_align.tools.benchmark",
        ),
        (dict(benchmarks=" ,"), "--benchmarks= , names nothing; --list shows all"),
        (dict(benchmarks="cifar10", tasks="zero-shot"), "--tasks has 'zero-shot' (did you mean"),
        (dict(benchmarks="cifar10", tasks=" ,"), "--tasks names nothing; known: zero_shot, linear"),
        (dict(benchmarks="cifar10", output="results.json"), "must end in .csv"),
        (
            dict(benchmarks="cifar10", page="/dev/null/x.html"),
            "--page=/dev/null/x.html: the folder",
        ),
        (dict(benchmarks="cifar10", shots="1,x"), "--shots=1,x must be whole numbers"),
        (dict(benchmarks="cifar10", draws=0), "draws = 0 at least 1"),
        (dict(benchmarks="cifar10", max_broken_fraction=2), "max_broken_fraction = 2.0 is not a"),
        (dict(benchmarks="cifar10", template="a dog"), "--template: template 'a dog' needs one {}"),
    ],
)
def test_what_is_wrong_with_the_command_is_one_line(model, data, tmp_path, capsys, flags, said):
    given = dict(output=tmp_path / "r.csv") | flags
    assert small.run(model, data, **given) in (1, 2)
    error = capsys.readouterr().err
    assert said in error and error.startswith("error: ") and error.count("\n") == 1


def test_names_may_have_spaces_between_them(output, model, data):
    spaced = {name: f" {text.replace(',', ' , ')}," for name, text in QUICK.items()}
    before = output.with_suffix(".json").read_bytes()
    cache = output.with_suffix(".embeddings")
    assert small.run(model, data, output, **spaced, cache=cache) == 0
    assert output.with_suffix(".json").read_bytes() == before


def test_files_that_cannot_be_continued_are_left_alone(tmp_path):
    alone = tmp_path / "alone.csv"
    alone.write_text("dataset\n")
    with pytest.raises(UserError, match="alone.csv is there, and alone.json"):
        ResultFiles(str(alone))
    assert alone.read_text() == "dataset\n"
    faults = {"[": "is not JSON", "{}": "no list", '[{"task": 1}]': "row 0 has no dataset"}
    for text, said in faults.items():
        (tmp_path / "other.json").write_text(text)
        with pytest.raises(UserError, match=said):
            ResultFiles(str(tmp_path / "other.csv"))


def write_sst2(root, splits):
    """Leaves a data set of two classes, with a validation split, in folders."""
    for number, (split, count) in enumerate(splits.items()):
        for label, name in enumerate(("negative", "positive")):
            folder = root / "rendered-sst2" / split / name
            folder.mkdir(parents=True)
            for image in range(count):
                data = small.draw_image(label, 1000 * number + image)
                (folder / f"{image:03d}.png").write_bytes(data)


@pytest.mark.slow
def test_a_probe_is_chosen_by_the_validation_split_in_a_run_and_by_the_command(model, tmp_path):
    embedder, tokenizer = make_embedder(model)
    write_sst2(tmp_path, {"train": 8, "valid": 6, "test": 10})
    given = dict(benchmarks="sst2", tasks="linear_probe")
    assert small.run(model, tmp_path, tmp_path / "r.csv", **given) == 0
    row = small.read_rows(tmp_path / "r.csv")["sst2", "linear_probe"]
    assert row["counts"] == {"test": 20, "train": 16, "validation": 12}
    named = "sst2", str(tmp_path), small.SEEN.transform, tokenizer, "linear_probe"
    found = NamedBenchmark(*named)(embedder)
    assert found == pytest.approx(row["metrics"], abs=1e-6)
    shutil.rmtree(tmp_path / "rendered-sst2" / "valid")
    assert NamedBenchmark(*named)(embedder) != pytest.approx(found, abs=1e-6)


@pytest.mark.slow
def test_broken_examples_are_counted_alike_for_images_and_labels(model, tmp_path):
    small.write_cifar(tmp_path, test=0, train=10)
    members = small.list_members([n % 10 for n in range(20)], 0)
    write_tar(tmp_path / "cifar10" / "test-00000.tar", [*members[:-1], ("00019.txt", b"")])
    (tmp_path / "cifar10" / "test-00001.tar").unlink(missing_ok=True)
    given = dict(benchmarks="cifar10", tasks="zero_shot")
    assert small.run(model, tmp_path, tmp_path / "r.csv", **given, max_broken_fraction=0) == 1
    assert small.run(model, tmp_path, tmp_path / "s.csv", **given, max_broken_fraction=0.2) == 0
    embedder, tokenizer = make_embedder(model)
    named = "cifar10", str(tmp_path), small.SEEN.transform, tokenizer
    with pytest.raises(BrokenDataError):
        NamedBenchmark(*named, max_broken_fraction=0.0)(embedder)
    embedder._objective.scale = lambda params: 1 / 0.1
    found = NamedBenchmark(*named, max_broken_fraction=0.2)(embedder)
    row = small.read_rows(tmp_path / "s.csv")["cifar10", "zero_shot"]
    assert found == pytest.approx(row["metrics"], abs=1e-6)


def test_of_a_run_that_went_on_the_page_shows_the_last(output, tmp_path):
    rows = json.loads(output.with_suffix(".json").read_text())
    newer = [row | {"fingerprint": "other", "score": 0.123} for row in rows]
    write_page([*rows, *newer], tmp_path / "page.html")
    write_page(newer, tmp_path / "newer.html")
    assert (tmp_path / "page.html").read_text() == (tmp_path / "newer.html").read_text()


def test_a_row_that_the_page_could_not_show_is_refused(output, tmp_path):
    rows = json.loads(output.with_suffix(".json").read_text())
    for field in ("model_fullname", "title", "images", "metric", "settings"):
        broken = [{k: v for k, v in rows[0].items() if k != field}]
        (tmp_path / "r.json").write_text(json.dumps(broken))
        with pytest.raises(UserError, match=f"row 0 has no {field}: mend it"):
            ResultFiles(str(tmp_path / "r.csv"))
    (tmp_path / "r.json").write_text(json.dumps([rows[0] | {"settings": {}}]))
    with pytest.raises(UserError, match="row 0 has no settings.task"):
        ResultFiles(str(tmp_path / "r.csv"))
