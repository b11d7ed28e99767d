"""Means over languages and suites are those of the last results of each model."""

import pytest

from big_align.suites import catalog
from big_align.suites.measuring import published
from big_align.suites.measuring.means import average_languages, average_suites
from big_align.suites.measuring.page import write_page
from big_align.suites.measuring.results import TASK_NAMES, write_table


def make_result(dataset, score, language="en", model="one", **more):
    benchmark = catalog.read_benchmark(dataset)
    result = dict(
        dataset=dataset, title=benchmark.title, task="zeroshot_retrieval", language=language,
        model_fullname=model, settings={"task": "retrieval"}, metric="mean_recall", images=100,
        score=score, metrics={"mean_recall": score},
    )  # fmt: skip
    return result | more


def test_languages_of_a_data_set_are_averaged_for_each_model(tmp_path):
    rows = [
        make_result("flickr8k", 0.9),
        make_result("xtd_jp", 0.4, "jp"),
        *(make_result(f"multi30k_{name}", x, name) for name, x in (("en", 0.5), ("de", 0.25))),
        make_result("multi30k_de", 0.3, "de"),  # measured anew
        *(make_result(f"multi30k_{name}", 0.1, name, "two") for name in ("en", "de")),
        make_result("multi30k_translations_fr", "nan", "fr"),
    ]
    found = average_languages(rows)
    assert [(row["dataset"], row["model_fullname"]) for row in found] == [
        ("multi30k, mean of 2", "one"), ("multi30k, mean of 2", "two"),
    ]  # fmt: skip
    assert [row["score"] for row in found] == pytest.approx([0.4, 0.1])
    assert found[0]["languages"] == ["en", "de"]
    assert "multi30k, mean of 2" in write_table(rows) and "40.00" in write_table(rows)
    write_page(rows, tmp_path / "page.html")
    assert "Multi30k, mean of 2 languages" in (tmp_path / "page.html").read_text()
    assert average_languages(rows[:2]) == []


def classify(dataset, score, acc1, model="one", task="zero_shot", **more):
    name = TASK_NAMES[task]
    metric = catalog.read_benchmark(dataset).metric
    settings = more.pop("settings", {"task": task})
    given = dict(task=name, settings=settings, metric=metric, metrics={"acc1": acc1, **more})
    return make_result(dataset, score, model=model) | given


def test_the_mean_of_a_task_is_over_the_data_sets_that_it_fits():
    """iCLIP's Fig. 4 on Kornblith's 12: an image of VOC2007 has several labels, so 11 are left."""
    names = [name for name in catalog.expand(["kornblith12"]) if name != "voc2007"]
    average = lambda rows: [x for x in average_suites(rows) if x["suite"] == "kornblith12"]  # noqa: E731
    rows = [
        classify(name, n / 16, 1.0, task="few_shot_text", text_encoder_1shot=n / 32)
        for n, name in enumerate(names)
    ]
    (found,) = average(rows)
    assert found["dataset"] == "kornblith12, mean of 11 of 12"
    assert found["title"].endswith("mean of 11 of 12")
    assert found["score"] == pytest.approx(5 / 16)
    assert found["metrics"]["text_encoder_1shot"] == pytest.approx(5 / 32)
    assert average(rows[1:]) == []
    zero_shot = [classify(name, 0.5, 0.5) for name in names]
    assert average(zero_shot) == []  # which VOC2007 has
    (whole,) = average([*zero_shot, classify("voc2007", 0.5, 0.5)])
    assert whole["dataset"] == "kornblith12, mean of 12"


def test_the_mean_over_a_suite_is_that_of_all_its_data_sets_for_each_model_and_task(tmp_path):
    names = catalog.expand(["fine_grained"])
    rows = [classify(name, x / 10, x / 20) for x, name in enumerate(names, 1)]
    rows[0]["metrics"]["ece"] = 0.5  # a number that others lack
    rows += [classify(names[0], 0.5, 0.25)]  # measured anew, and the last
    rows += [classify(name, 0.9, 0.9, task="linear_probe") for name in names[1:]]  # not all
    rows += [classify(name, 0.6, 0.3, "two") for name in reversed(names)]
    rows += [classify("cifar10", 1.0, 1.0), classify(names[1], "nan", 1.0, "three")]
    found = average_suites(rows)
    assert [(row["suite"], row["model_fullname"], row["task"]) for row in found] == [
        ("fine_grained", "one", "zeroshot_classification"),
        ("fine_grained", "two", "zeroshot_classification"),
    ]
    assert [row["score"] for row in found] == pytest.approx([(0.5 + 0.2 + 0.3 + 0.4) / 4, 0.6])
    assert found[0]["metrics"] == {"acc1": pytest.approx((0.25 + 0.1 + 0.15 + 0.2) / 4)}
    assert found[0]["metric"] == "score" and found[0]["images"] == 400
    table = write_table(rows)
    assert "fine_grained, mean of 4" in table and "35.00" in table
    write_page(rows, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "ALIGN&#x27;s four fine-grained data sets, mean, zero-shot" in page
    mlcd = published.find_published("fine_grained", "zero_shot")["score"]
    assert f"{max(number.value for number in mlcd):.1f}</span>" in page


TABLE_2 = dict(
    cifar10=68.53, cifar100=27.62, caltech101=11.05, flowers102=2.19, food101=13.90, sun397=20.28,
    dtd=8.71, pets=7.09, imagenet=16.72,
)  # fmt: skip
"""IDEA with COCO and VG; the paper's average is 19.57."""


def idea_rows(templates, **more):
    suite = catalog.read_suite("idea9")
    return [
        classify(
            name, 0.01, value / 100, settings={"task": "zero_shot", "templates": texts}, **more
        )
        for (name, value), texts in zip(TABLE_2.items(), map(templates, suite.names), strict=True)
    ]


def test_idea_averages_top_1_with_its_own_templates(tmp_path):
    """§4.2, Table 2; the scores of Caltech-101, Flowers and Pets are means per class."""
    assert tuple(TABLE_2) == catalog.read_suite("idea9").names
    own = lambda name: list(catalog.read_suite("idea9").templates[name])  # noqa: E731
    rows = idea_rows(own)
    (found,) = average_suites(rows)
    assert found["suite"] == "idea9" and found["metric"] == "accuracy"
    assert f"{100 * found['score']:.2f}" == "19.57"
    assert "19.57" in write_table(rows)
    write_page(rows, tmp_path / "page.html")  # beside that of the paper
    page = (tmp_path / "page.html").read_text()
    assert "mean, zero-shot</h3>" in page and page.count("19.6</span>") >= 2
    assert average_suites(idea_rows(lambda name: ["a photo of a {}."])) == []


@pytest.mark.parametrize("suite", [name for name in catalog.suites() if name != "idea9"])
def test_other_suites_average_what_their_papers_do(suite):
    """VTAB counts accuracy; CLIP, MLCD, UniCL and iCLIP count the metric of each data set."""
    assert catalog.read_suite(suite).measure == ("accuracy" if suite == "vtab" else "score")
    assert not catalog.read_suite(suite).templates


def test_the_mean_of_clip_in_iclip_is_that_of_scores():
    """iCLIP Table 5 has 68.8 for CLIP's ViT-B/16 on 12 data sets, whose numbers CLIP published."""
    published_by_clip = dict(
        food101=89.2, cifar10=91.6, cifar100=68.7, birdsnap=39.1, sun397=65.2, stanford_cars=65.6,
        fgvc_aircraft=27.1, voc2007=83.9, dtd=46.0, pets=88.9, caltech101=89.3, flowers102=70.4,
    )  # fmt: skip
    rows = [classify(name, x / 100, 0.5) for name, x in published_by_clip.items()]
    assert 100 * average_suites(rows)[0]["score"] == pytest.approx(68.8, abs=0.06)
