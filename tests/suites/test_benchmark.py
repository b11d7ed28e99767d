"""What a named data set is: its classes and what must go together."""

import dataclasses

import pytest

from big_align.core.errors import UserError
from big_align.data.labels.classes import read_classes
from big_align.suites.benchmark import Benchmark, Layout

LAYOUT = Layout("shards", "cifar10", {"test": "test"}, None, tuple(range(10)), "its page", "cls")
CIFAR = Benchmark(
    name="cifar10", title="CIFAR-10", task="classification", metric="accuracy",
    layouts=(LAYOUT,), license="https://a", page="https://b", get="nothing", tables=(),
    class_list="cifar10",
)  # fmt: skip


def test_the_classes_are_those_of_the_list():
    assert CIFAR.classes() == read_classes("cifar10") and CIFAR.splits == ("test",)


def test_a_subset_keeps_names_ids_and_templates_in_its_own_order():
    whole = read_classes("imagenet")
    some = dataclasses.replace(CIFAR, class_list="imagenet", subset=(7, 2, 999)).classes()
    assert some.names == (whole.names[7], whole.names[2], whole.names[999])
    assert some.ids == (whole.ids[7], whole.ids[2], whole.ids[999])
    assert some.templates == whole.templates and len(some.templates) == 80


@pytest.mark.parametrize("subset, said", [((0, 10), "no position 10 of 10"), ((-1,), "-1")])
def test_a_subset_outside_the_list_is_refused(subset, said):
    with pytest.raises(UserError, match=said):
        dataclasses.replace(CIFAR, subset=subset).classes()


def test_what_has_no_class_list_says_so():
    captions = dataclasses.replace(CIFAR, task="retrieval", class_list=None)
    with pytest.raises(UserError, match="cifar10 has no class list"):
        captions.classes()


@pytest.mark.parametrize(
    "changed, said",
    [
        (dict(task="translation"), "task = 'translation'"),
        (dict(class_list=None), "no class list"),
        (dict(subset=(1, 1)), "twice"),
    ],
)
def test_what_cannot_be_a_benchmark_is_refused(changed, said):
    with pytest.raises(ValueError, match=said):
        dataclasses.replace(CIFAR, **changed)


@pytest.mark.parametrize(
    "changed, said",
    [
        (dict(kind="zip"), "kind = 'zip'"),
        (dict(splits={"dev": "dev"}), "dev"),
        (dict(order_source=""), "go together"),
        (dict(own_names=("a", "b")), "2 names"),
    ],
)
def test_what_cannot_be_a_layout_is_refused(changed, said):
    with pytest.raises(ValueError, match=said):
        dataclasses.replace(LAYOUT, **changed)
