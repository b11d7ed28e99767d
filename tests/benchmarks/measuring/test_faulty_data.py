"""One data set that cannot be measured is told in a line, and the others are measured."""

import pytest

from big_align.data.derived import source_pieces
from big_align.distributed import agreement
from tests.benchmarks.measuring import small
from tests.data.samples import write_tar


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return small.save_model(tmp_path_factory.mktemp("models") / "model")


@pytest.mark.parametrize("samples", [source_pieces.SAMPLES, 1])
def test_a_data_set_with_a_wrong_label_is_a_line_and_the_others_go_on(
    model, tmp_path, capsys, monkeypatch, samples
):
    """Whether it is met when images are told apart, or when labels are."""
    monkeypatch.setattr(source_pieces, "SAMPLES", samples)
    small.write_cifar(tmp_path, test=10)
    members = small.list_members([0, 1, 12], 5)
    write_tar(tmp_path / "cifar10" / "test-00000.tar", members)
    small.write_flickr(tmp_path)
    given = dict(benchmarks="cifar10,flickr8k", tasks="zero_shot,retrieval")
    assert small.run(model, tmp_path, tmp_path / "r.csv", **given) == 1
    said = [line for line in capsys.readouterr().out.splitlines() if line.startswith("cifar10")]
    assert len(said) == 1 and "test-00000.tar: 00007: the label 12 is none of" in said[0]
    assert list(small.read_rows(tmp_path / "r.csv")) == [("flickr8k", "retrieval")]


def test_the_name_of_a_data_set_is_told_once(model, tmp_path, capsys):
    small.write_cifar(tmp_path)
    (tmp_path / "cifar10" / "classnames.txt").unlink()
    assert small.run(model, tmp_path, tmp_path / "r.csv", benchmarks="cifar10") == 1
    assert capsys.readouterr().out.startswith(f"cifar10: {tmp_path}/cifar10 has no classnames.txt")


@pytest.mark.parametrize("others", [[], ["zero_shot"]])
def test_data_that_another_process_lacks_are_told_and_nobody_waits_for_them(
    model, tmp_path, capsys, monkeypatch, others
):
    """Another process finds none of them, or no training images."""
    small.write_cifar(tmp_path)
    small.write_flickr(tmp_path)

    def gather(topic, value):
        if topic != "benchmarks":
            return [value]
        there = {"cifar10": [*others, "test"]} if others else {}
        return [value, {"flickr8k": value["flickr8k"]} | there]

    monkeypatch.setattr(agreement, "gather", gather)
    given = dict(benchmarks="cifar10,flickr8k", tasks="zero_shot,knn,retrieval")
    assert small.run(model, tmp_path, tmp_path / "r.csv", **given) == 1
    assert "cifar10: not all processes find the same data of it" in capsys.readouterr().out
    assert list(small.read_rows(tmp_path / "r.csv")) == [("flickr8k", "retrieval")]
