"""Miniatures of the files of judgments open as what they say; what is no such file is refused."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from big_align.core.errors import UserError
from big_align.suites import catalog, opening
from big_align.suites.judged.layouts import open_judged
from tests.suites.judged import small_judgments

NAMES = catalog.expand(["composition", "similarity"])


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    root = tmp_path_factory.mktemp("data")
    small_judgments.write_all(root)
    return root


def open_named(name, root):
    return open_judged(catalog.read_benchmark(name), "test", str(root))


def refuse(name, root):
    with pytest.raises(UserError) as error:
        open_named(name, root)
    assert "\n" not in str(error.value) and str(error.value).startswith(name)
    return str(error.value)


def count_images(judged):
    return int(judged.source.shard_sizes.sum())


@pytest.mark.parametrize("name", NAMES)
def test_what_is_not_there_says_how_it_is_got(tmp_path, name):
    benchmark = catalog.read_benchmark(name)
    with pytest.raises(opening.MissingData) as error:
        open_judged(benchmark, "test", str(tmp_path))
    assert benchmark.get in str(error.value) and "\n" not in str(error.value)
    with pytest.raises(UserError, match="open_judged"):
        opening.open_split(benchmark, "test", str(tmp_path))


def test_sugar_crepe(data):
    choices = open_named("sugarcrepe", data)
    assert len(choices.image) == sum(3 + n for n in range(7)) and count_images(choices) == 6
    assert len(set(choices.texts)) == len(choices.texts) and "a dog 0" in choices.texts
    first = [choices.texts[n] for n in choices.text[0]]
    assert first == ["a dog 0", "a photo 0"] and choices.category[0] == "replace_obj"
    second = choices.source.name(0, int(choices.image[1, 0]))
    assert second.endswith("coco/val2017/000000000001.jpg")
    assert set(choices.averaged) == set(small_judgments.SUGAR)


def test_winoground(data):
    choices = open_named("winoground", data)
    assert choices.image.tolist() == [[2 * n, 2 * n + 1] for n in range(6)]
    assert [choices.texts[n] for n in choices.text[1]] == [
        "the dog runs on grass 1", "grass runs on the dog 1",
    ]  # fmt: skip
    assert choices.category[:3] == ("Object", "Relation", "Both")
    assert choices.source.name(0, 3).endswith("winoground/data/images/ex_1_img_1.png")


def test_boxes_are_what_the_model_sees_and_stand_once(data):
    choices = open_named("aro_vg_relation", data)
    assert len(choices.image) == 8 and count_images(choices) == 4
    assert choices.averaged == ("on", "runs on")  # near is symmetric
    number = int(choices.image[5, 0])
    example = choices.source.read(0, number)
    with Image.open(data / "aro/images/1.jpg") as image:
        expected = np.asarray(image.convert("RGB"))[1:8, 1:6]
    np.testing.assert_array_equal(example.image, expected)
    assert example.key == choices.source.key(0, number) == f"{data}/aro/images/1.jpg#1,1,6,8"


def test_attributes_with_25_cases_are_averaged(data):
    choices = open_named("aro_vg_attribution", data)
    assert len(choices.image) == 56 and choices.averaged == ("a, runs on",)  # the others have 14
    assert set(choices.category) == {"a, on", "a, near", "a, runs on"}


def test_orders_of_words_have_an_image_for_several_rows(data):
    choices = open_named("aro_coco_order", data)
    assert len(choices.image) == 12 and count_images(choices) == 4
    assert choices.image[:, 0].tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]
    said = [choices.texts[n] for n in choices.text[0]]
    assert said[0] == "the dog runs on grass 0" and said[4] == "the dog runs on grass 0 a"
    seen = [choices.source.read(s, n).image for s in range(2) for n in range(2)]
    assert seen == [small_judgments.draw_image(n, n) for n in range(4)]


def test_crisscrossed_captions(data):
    rated = open_named("cxc", data)
    assert len(rated.texts) == 35 and count_images(rated) == 7
    assert rated.owner.tolist() == np.repeat(np.arange(7), 5).tolist()
    assert rated.sts.pair[0].tolist() == [0, 6] and rated.sts.pair[7].tolist() == [0, 3]
    assert rated.sis.pair[1].tolist() == [1, 3] and rated.sis.positive == 2.5
    assert rated.sits.pair[0].tolist() == [2, 1] and rated.sits.rating[1] == 0.7
    assert rated.texts[0] == "a dog 1 0"


def test_simlex(data):
    words = open_named("simlex999", data)
    assert len(words.ratings.pair) == 8 and words.texts[:3] == ("a", "photo", "the")
    subsets = {name: places.tolist() for name, places in words.subsets.items()}
    assert subsets["adjs"] == [0, 1] and subsets["nouns"] == [2, 3, 4]
    assert subsets["conc_q2"] == [0, 2] and subsets["hard"] == [0, 1, 2, 6, 7]


def test_a_digest_changes_with_any_judgment(tmp_path):
    small_judgments.write_simlex(tmp_path)
    path = tmp_path / "simlex999/SimLex-999/SimLex-999.txt"
    seen = {open_named("simlex999", tmp_path).digest()}
    assert open_named("simlex999", tmp_path).digest() in seen
    for old, new in (("1.58", "1.59"), ("\tphoto\tA", "\tphotos\tA"), ("2\t7.25", "1\t7.25")):
        path.write_text(small_judgments.SIMLEX.replace(old, new))
        seen.add(open_named("simlex999", tmp_path).digest())
    assert len(seen) == 4


def edit_json(path, change):
    found = json.loads(path.read_text())
    change(found)
    path.write_text(json.dumps(found))


def test_files_of_sugar_crepe_that_are_none(tmp_path):
    small_judgments.write_sugar_crepe(tmp_path)
    path = tmp_path / "sugarcrepe/data/swap_att.json"
    edit_json(path, lambda rows: rows["1"].pop("negative_caption"))
    assert "swap_att.json, 1: negative_caption is missing" in refuse("sugarcrepe", tmp_path)
    path.write_text("[1]")
    assert "swap_att.json, 0 is 1, not an object" in refuse("sugarcrepe", tmp_path)
    path.write_text("{")
    assert "swap_att.json is not JSON" in refuse("sugarcrepe", tmp_path)
    path.write_text("{}")
    assert "swap_att.json is JSON, and no list of rows" in refuse("sugarcrepe", tmp_path)
    path.unlink()
    assert "swap_att.json cannot be read" in refuse("sugarcrepe", tmp_path)


def test_images_that_are_not_there(tmp_path):
    small_judgments.write_sugar_crepe(tmp_path)
    (tmp_path / "coco/val2017").rename(tmp_path / "coco/val2018")
    said = refuse("sugarcrepe", tmp_path)
    assert "needs 000000000000.jpg" in said and "/../coco/val2017" in said
    small_judgments.write_winoground(tmp_path)
    (tmp_path / "winoground/data/images").rename(tmp_path / "winoground/data/pictures")
    assert "unpack images.zip" in refuse("winoground", tmp_path)


def test_boxes_that_are_none(tmp_path):
    small_judgments.write_boxes(tmp_path, "relation")
    path = tmp_path / "aro/visual_genome_relation.json"
    edit_json(path, lambda rows: rows[3].update(bbox_w=0))
    assert "relation.json, 3: its box has 0 by 7" in refuse("aro_vg_relation", tmp_path)
    edit_json(path, lambda rows: rows[3].update(bbox_w="wide"))
    assert "relation.json, 3: bbox_w is 'wide', not a number" in refuse("aro_vg_relation", tmp_path)
    edit_json(path, lambda rows: rows[2].pop("relation_name"))
    assert "neither a relation_name nor two attributes" in refuse("aro_vg_relation", tmp_path)


def test_order_tables_that_are_none(tmp_path):
    small_judgments.write_order(tmp_path, "coco")
    path = tmp_path / "aro_coco_order/data/test-00001-of-00002.parquet"
    table = pq.read_table(path)
    pq.write_table(table.drop(["hard_text_3"]), path)
    assert "has no column hard_text_3" in refuse("aro_coco_order", tmp_path)
    rows = table.to_pylist()
    rows[4]["hard_text_1"] = None
    pq.write_table(pa.Table.from_pylist(rows), path)
    assert "row 4 has no text in hard_text_1" in refuse("aro_coco_order", tmp_path)
    rows = table.to_pylist()
    rows[4]["images"] = None
    pq.write_table(pa.Table.from_pylist(rows), path)
    assert "12 captions and 11 images" in refuse("aro_coco_order", tmp_path)


@pytest.mark.parametrize(
    "file, old, new, said",
    [
        ("sts_test.csv", "caption1,", "caption,", "must begin with the columns caption1, caption2"),
        ("sits_test.csv", "sentid:115,", "sentid:1,", "sentid:1 is not in the split test"),
        ("sis_test.csv", "000000000003.jpg", "000000000000.jpg", "000.jpg is not in the split"),
        ("sis_test.csv", "0.45,", "nan,", "line 3: agg_score is 'nan', not a number"),
        ("sts_test.csv", "0.5,c2c_isim", "0.5", "line 3 has 3 columns, not 4"),
    ],
)
def test_ratings_that_are_none(tmp_path, file, old, new, said):
    small_judgments.write_crisscrossed(tmp_path)
    path = tmp_path / "cxc/data" / file
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new, 1))
    assert said in refuse("cxc", tmp_path) and file in refuse("cxc", tmp_path)


def test_ratings_without_coco(tmp_path):
    small_judgments.write_crisscrossed(tmp_path)
    edit_json(tmp_path / "coco/dataset_coco.json", lambda found: found["images"][2].pop("split"))
    assert "no file of Karpathy's splits" in refuse("cxc", tmp_path)
    (tmp_path / "coco/dataset_coco.json").unlink()
    assert "dataset_coco.json, which is in none of" in refuse("cxc", tmp_path)


@pytest.mark.parametrize(
    "old, new, said",
    [
        ("word1\t", "word_1\t", "must begin with the columns word1"),
        ("\tN\t8.77", "\tX\t8.77", "line 4: POS is X"),
        ("\t9.2\t", "\thigh\t", "line 3: SimLex999 is 'high'"),
    ],
)
def test_pairs_of_words_that_are_none(tmp_path, old, new, said):
    small_judgments.write_simlex(tmp_path)
    path = tmp_path / "simlex999/SimLex-999/SimLex-999.txt"
    path.write_text(small_judgments.SIMLEX.replace(old, new, 1))
    assert said in refuse("simlex999", tmp_path)
