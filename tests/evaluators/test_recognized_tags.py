"""Recognition of tags by captions and by labels that say something of some tags only."""

import csv

import numpy as np
import pytest
from PIL import Image

from big_align.data.sources.rows_source import RowsSource
from big_align.evaluators import tag_recognition
from big_align.evaluators.tag_recognition import TagRecognition
from tests.evaluators.tagged import GivenLogits, Words, make_source, write_tags

CAPTIONS = [["a dog", "dog on grass"], ["a ball"], ["the sky", "a dog under the sky"]]
#        dog  ball  grass  sky
LOGITS = [[2, -1, -1, -1], [1, 1, -2, -2], [-1, -3, 2, 3]]


@pytest.fixture(autouse=True)
def words(monkeypatch):
    monkeypatch.setattr(tag_recognition, "TagExtractor", Words)


@pytest.mark.parametrize("batch_size", [2, 3, 8])
def test_scores_by_hand(tmp_path, batch_size):
    evaluate = TagRecognition(make_source(CAPTIONS), "resize(2)", write_tags(tmp_path))
    result = evaluate(GivenLogits(LOGITS, batch_size))
    # Average precisions: dog is first and third of three, (1 + 2/3) / 2; ball 1; grass second, 1/2;
    # sky 1. Chosen: dog, dog and ball, grass and sky, of which dog, ball and sky are right.
    assert result["map"] == pytest.approx((5 / 6 + 1 + 1 / 2 + 1) / 4)
    assert result["overall_precision"] == pytest.approx(3 / 5)
    assert result["overall_recall"] == pytest.approx(3 / 5)
    assert result["class_precision"] == pytest.approx((1 / 2 + 1 + 0 + 1) / 4)
    assert result["class_recall"] == pytest.approx((1 / 2 + 1 + 0 + 1) / 4)
    assert result["tags"] == 4


def test_a_number_of_tags_in_place_of_a_threshold(tmp_path):
    tags = write_tags(tmp_path)
    evaluate = TagRecognition(make_source(CAPTIONS), "resize(2)", tags, top_k=1)
    # dog, dog (of two that tie the more frequent), sky: two of them right.
    assert evaluate(GivenLogits(LOGITS))["overall_precision"] == pytest.approx(2 / 3)


def test_unreadable_images_do_not_count(tmp_path):
    tags = write_tags(tmp_path)
    kept = [0, 2]
    whole = make_source([CAPTIONS[n] for n in kept])
    broken = make_source(CAPTIONS, broken=(1,))
    expected = TagRecognition(whole, "resize(2)", tags)(GivenLogits([LOGITS[n] for n in kept]))
    evaluate = TagRecognition(broken, "resize(2)", tags, max_broken_fraction=0.5)
    assert evaluate(GivenLogits(LOGITS)) == expected
    assert expected["tags"] == 3


def write_table(folder, rows):
    """Writes a table of images with what is verified to be in them, and not to be."""
    for number in range(len(rows)):
        pixels = np.full((2, 2, 3), number, np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    path = folder / "verified.csv"
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["image", "there", "absent"])
        writer.writerows([f"{n}.png", *row] for n, row in enumerate(rows))
    return RowsSource(str(path), label="there"), RowsSource(str(path), label="absent")


def test_partial_labels_count_where_somebody_looked(tmp_path):
    rows = [("Dog|Tree", "Ball"), ("Ball", "Dog"), ("Sky", "")]
    there, absent = write_table(tmp_path, rows)
    tags = write_tags(tmp_path)
    evaluate = TagRecognition(
        there, "resize(2)", tags, truth="verified", absent_source=absent, threshold=0.5
    )
    result = evaluate(GivenLogits(LOGITS))
    # dog: of the images 0 and 1 the first has it and scores higher; ball: of 0 and 1 the second;
    # sky: image 2 alone. grass is known of none, tree is no tag. Of what is known dog and ball are
    # chosen in image 1, dog in 0 and sky in 2: three of four are right, and nothing is left out.
    assert result["map"] == 1 and result["tags"] == 3
    assert result["overall_precision"] == pytest.approx(3 / 4)
    assert result["overall_recall"] == 1
    # Without the second source everything else is absent: also the dog of image 2, not grass.
    complete = TagRecognition(there, "resize(2)", tags, truth="labels")(GivenLogits(LOGITS))
    assert complete["overall_precision"] == pytest.approx(3 / 4)
    assert complete["tags"] == 3


def test_openimages_as_idea_measures_it_by_hand(tmp_path):
    """Tags without a label are absent, and a fourth image, with no tag, is left out (§4.2)."""
    rows = [("Dog", "Ball"), ("Ball|Tree", ""), ("Sky", "Dog"), ("Tree", "Sky")]
    there, absent = write_table(tmp_path, rows)
    #          dog  ball  grass  sky
    logits = [[1, 0.5, -1, -1], [2, 1, -2, -2], [-1, 2, -1, 3], [9, 9, 9, 9]]
    evaluate = TagRecognition(there, "resize(2)", write_tags(tmp_path), truth="idea")
    result = evaluate(GivenLogits(logits))
    # Dog and ball are second, behind an image that has no such label: precision 1/2; sky is first.
    assert result["map"] == pytest.approx((1 / 2 + 1 / 2 + 1) / 3)
    # Chosen: dog in images 0 and 1, ball in all three, sky in image 2.
    assert result["class_precision"] == pytest.approx((1 / 2 + 1 / 3 + 1) / 3)
    assert result["class_recall"] == 1 and result["tags"] == 3
    options = {"truth": "verified", "absent_source": absent}
    evaluate = TagRecognition(there, "resize(2)", write_tags(tmp_path), **options)
    verified = evaluate(GivenLogits(logits))
    # Dog is known of images 0 and 2, ball of 0 and 1, sky of 2 and 3, where it scores too high.
    assert verified["map"] == pytest.approx((1 + 1 + 1 / 2) / 3)
    assert verified["class_precision"] == pytest.approx((1 + 1 / 2 + 1 / 2) / 3)


def test_labels_of_more_images_that_nobody_looked_at_change_nothing(tmp_path):
    (tmp_path / "less").mkdir()
    rows = [("Dog", "Ball"), ("Ball", "Dog"), ("Sky", "")]
    tags = write_tags(tmp_path)
    results = []
    for folder, table in ((tmp_path / "less", rows), (tmp_path, [*rows, ("Tree", ""), ("", "")])):
        there, absent = write_table(folder, table)
        options = {"truth": "verified", "absent_source": absent}
        evaluate = TagRecognition(there, "resize(2)", tags, **options)
        results.append(evaluate(GivenLogits([*LOGITS, [9, 9, 9, 9], [9, 9, -9, 9]])))
    assert results[0] == results[1]


def test_labels_by_number_take_their_names_from_a_class_list(tmp_path):
    path = tmp_path / "classes.txt"
    path.write_text("sky\nhot_dog\ndog\n")
    source = make_source(CAPTIONS, labels=[(2, 1), (), (0,)])
    evaluate = TagRecognition(
        source, "resize(2)", write_tags(tmp_path), truth="labels", class_list=str(path)
    )
    result = evaluate(GivenLogits(LOGITS))
    # dog and sky are asked of every image: chosen are dog, dog and sky.
    assert result["tags"] == 2
    assert result["overall_precision"] == pytest.approx(2 / 3)
    source = make_source(CAPTIONS, labels=[(3,), (), ()])
    evaluate = TagRecognition(
        source, "resize(2)", write_tags(tmp_path), truth="labels", class_list=str(path)
    )
    with pytest.raises(ValueError, match="the label 3 is not among the 3 classes"):
        evaluate(GivenLogits(LOGITS))


def test_what_does_not_fit_is_one_error(tmp_path):
    tags, source = write_tags(tmp_path), make_source(CAPTIONS, class_names=("cat", "cow"))
    empty = tmp_path / "empty.json"
    empty.write_text('{"format": 1, "tokenizer": "", "tags": []}')
    shorter = make_source(CAPTIONS[:2], class_names=("dog",))
    named = make_source(CAPTIONS, class_names=("dog", "cow"))
    for options, message in (
        ({"tags": str(tmp_path / "no.json")}, "no.json: there is no such file"),
        ({"tags": str(empty)}, "empty.json: has no tag"),
        ({"truth": "label"}, "truth = 'label' is unknown"),
        ({"class_list": "imagenet"}, "set truth = 'labels'"),
        ({"truth": "verified"}, "'verified' and absent_source go together"),
        ({"truth": "idea", "absent_source": named}, "'verified' and absent_source go together"),
        ({"truth": "labels"}, "none of the 2 classes, 'cat' the first, is in the tag list"),
        ({"truth": "labels", "source": make_source(CAPTIONS)}, "has no names of its labels"),
        ({"truth": "verified", "source": named, "absent_source": shorter}, "2 examples and sourc"),
        ({"threshold": 1.5}, "threshold = 1.5"),
    ):
        given = {"source": source, "transform": "resize(2)", "tags": tags} | options
        with pytest.raises(ValueError, match=message):
            TagRecognition(**given)
    evaluate = TagRecognition(source, "resize(2)", tags)
    with pytest.raises(ValueError, match="recognizes 3 tags, and .*tags.json has 4"):
        evaluate(GivenLogits(np.zeros((3, 3))))
    with pytest.raises(ValueError, match="not finite"):
        evaluate(GivenLogits(np.full((3, 4), np.nan)))
    nothing = make_source([["a cat"]] * 3)
    with pytest.raises(ValueError, match="no image is known to have any of the tags"):
        TagRecognition(nothing, "resize(2)", tags)(GivenLogits(LOGITS))
