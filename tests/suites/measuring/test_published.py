"""Published numbers belong to named data sets, and stand beside columns that are measured."""

import pytest

from big_align.suites import catalog
from big_align.suites.benchmark import JUDGED
from big_align.suites.measuring import published
from big_align.suites.measuring.judged_tasks import list_judged_numbers
from big_align.suites.measuring.plans import TASKS_OF
from big_align.suites.measuring.tasks import TaskSettings, list_numbers


def test_every_number_is_of_a_data_set_a_task_and_a_column_that_there_are():
    numbers, papers = published._read_file()["numbers"], published.read_papers()
    assert len(numbers) > 50
    for entry in numbers:
        assert entry["paper"] in papers and entry["table"].startswith(("Table ", "Figure 4"))
        for name, value in entry["values"].items():
            assert 0 < value <= 100
            named = [catalog.read_benchmark(each) for each in catalog.expand([name])]
            fit = [each for each in named if entry["task"] in TASKS_OF[each.task]]
            assert fit == named or (name, len(fit)) == ("kornblith12", 11), name
            for benchmark in fit:
                columns = (
                    list_judged_numbers(benchmark) if benchmark.task in JUDGED
                    else list_numbers(entry["task"], benchmark.metric, 10, TaskSettings())
                )  # fmt: skip
                assert entry["column"] in ("score", *columns), entry


@pytest.mark.parametrize(
    "dataset, task, column, model, table, value",
    [
        ("imagenet", "zero_shot", "score", "ALIGN (EfficientNet-L2)", "Table 4", 76.4),
        ("flickr30k", "retrieval", "image_retrieval_recall@1", "MLCD (ViT-L/14)", "Table 3", 75.9),
        ("voc2007", "linear_probe", "score", "MLCD (ViT-L/14)", "Table 1", 92.5),
        ("dtd", "zero_shot", "acc1", "IDEA", "Table 2", 22.08),
        ("imagenet", "linear_probe", "lp_acc1", "IDEA*, without texts of tags", "Table 5", 31.63),
        ("imagenet", "zero_shot", "acc1", "CLIP, by IDEA", "Table 6", 37.40),
        ("imagenet", "zero_shot", "acc1", "IDEA", "Table 6", 39.36),
        ("idea9", "zero_shot", "acc5", "IDEA", "Table 1", 37.70),
        ("imagenet_sketch", "zero_shot", "score", "iCLIP (Swin-B)", "Table 5", 59.8),
        ("imagenet", "zero_shot", "score", "UniCL (Swin-T)", "Table 6", 71.3),
        ("unicl14", "zero_shot", "score", "iCLIP (Swin-T)", "Table 2", 54.4),
        ("unicl18", "linear_probe", "score", "UniCL (Swin-T)", "Table 6", 81.6),
        ("kornblith12", "zero_shot", "score", "iCLIP (Swin-B)", "Table 5", 70.6),
        ("kornblith12", "few_shot_text", "text_encoder_1shot", "iCLIP (Swin-B)", "Figure 4", 73.9),
        ("cxc", "similarity", "text_text_retrieval_recall@5", "DE-I2T", "Table 2", 47.1),
        ("cxc", "similarity", "sits", "ALIGN (EfficientNet-L2)", "Table 3", 67.6),
        ("simlex999", "similarity", "score", "GloVe", "Table 12", 40.8),
    ],
)
def test_numbers_are_those_of_the_tables(dataset, task, column, model, table, value):
    found = published.find_published(dataset, task)[column]
    assert value in [x.value for x in found if (x.model, x.table) == (model, table)]


@pytest.mark.parametrize(
    "suite, task, column, model, data, average",
    [
        ("mlcd26", "linear_probe", "score", "MLCD (ViT-L/14)", "LAION-400M", "84.6"),
        ("mlcd25", "zero_shot", "score", "MLCD (ViT-L/14)", "LAION-400M", "67.5"),
        ("idea9", "zero_shot", "acc1", "IDEA", "COCO and VG", "19.57"),
        ("idea9", "zero_shot", "acc1", "CLIP, by IDEA", "CC-3M", "34.13"),
    ],
)
def test_the_mean_of_all_of_a_suite_is_the_average_of_its_table(
    suite, task, column, model, data, average
):
    found = published.find_published(suite, task)[column]
    (value,) = [x.value for x in found if (x.model, x.data) == (model, data)]
    assert f"{value:.{len(average.partition('.')[2])}f}" == average


def test_a_part_of_a_suite_has_no_published_mean():
    """MLCD's Table 4 has six data sets, and not all of `robustness`."""
    numbers = published.find_published("robustness", "zero_shot").get("score", [])
    assert "Table 4" not in [number.table for number in numbers]


def test_what_nobody_has_published_is_empty():
    assert published.find_published("flickr8k", "retrieval") == {}
