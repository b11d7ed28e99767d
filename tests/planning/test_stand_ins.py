"""Files that are not there yet are made up in the right size, and it is said."""

import fsspec

from big_align.config.overrides import load_config
from big_align.data.labels.classes import read_classes
from big_align.data.tags.tag_list import read_tag_list
from big_align.planning.stand_ins import fill_in, tell_vocabulary


def test_classes_that_are_not_there_are_counted_by_their_name(tmp_path):
    config = load_config("configs/iclip.py:scale=imagenet22k_yfcc14m")
    said = fill_in(config, tmp_path)
    assert said == [
        "the class list 'data/imagenet22k_described.json' is not there: 21,841 classes are assumed"
    ]
    classes = read_classes(config.data.mixture.labels.classes)
    assert len(classes) == 21_841 and all(classes.descriptions)  # which iCLIP's template asks for
    assert fill_in(config, tmp_path) == []  # They are there now.


def test_tags_that_are_not_there_have_tokens(tmp_path):
    config = load_config("configs/idea_cc3m.py")
    (said,) = fill_in(config, tmp_path)
    assert said.startswith("the tag list data/cc3m_tags.json is not there: 2,500 tags")
    tags = read_tag_list(config.data.tags.path)
    assert len(tags) == 2500 and tags.token_mask.any(axis=1).all()


def test_lists_in_a_bucket_are_there_and_others_are_counted_by_their_name(tmp_path):
    bucket = fsspec.filesystem("memory")
    bucket.pipe("/plan/birds.csv", b"name\nheron\ncrane\n")
    bucket.pipe("/plan/tags.json", b"{}")
    config = load_config("configs/idea_cc3m.py")
    config.data.tags.path = "memory://plan/tags.json"
    config.data.classes = "memory://plan/birds.csv"
    assert fill_in(config, tmp_path) == []
    assert config.data.classes == "memory://plan/birds.csv"
    config.data.classes, config.data.tags.path = "memory://plan/fish.csv", "unheard://of/tags.json"
    said = fill_in(config, tmp_path)
    assert [line.partition(" is not there")[0] for line in said] == [
        "the class list 'memory://plan/fish.csv'",
        "the tag list unheard://of/tags.json",
    ]


def test_given_values_are_kept(tmp_path):
    config = load_config("configs/unicl_imagenet.py")
    assert fill_in(config, tmp_path) == []
    assert config.data.classes == "imagenet"


def test_the_pieces_of_a_vocabulary_that_is_not_there_are_those_of_the_text_tower(tmp_path):
    config = load_config("configs/clip_vit.py", "--config.model.text.vocab_size=4321")
    (said,) = tell_vocabulary(config)
    assert said.startswith("the vocabulary 'from_data' will be learned from the data: 4,321 word")
    config.tokenizer.vocabulary = str(tmp_path / "vocabulary.txt")
    (said,) = tell_vocabulary(config)
    assert "vocabulary.txt' is not there: 4,321 word pieces are assumed" in said
    (tmp_path / "vocabulary.txt").write_text("[UNK]\n")
    assert tell_vocabulary(config) == []
    assert tell_vocabulary(load_config("quickstart")) == []  # its words are in the config
    images = load_config("configs/mlcd.py")  # has no text tower
    assert tell_vocabulary(images) == []
