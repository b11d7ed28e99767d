"""Synsets and senses of WordNet 3.0 that can be looked up in any copy of it."""

import pytest

from big_align.data.labels.word_net import WordNet


@pytest.fixture(scope="module")
def word_net(data_dir) -> WordNet:
    return WordNet(str(data_dir / "nltk_data"))


@pytest.mark.slow
def test_an_id_is_part_of_speech_and_offset(word_net):
    assert word_net.describe_id("n02124075") == "a domestic cat of Egypt"
    assert word_net.describe_id("n02012849").startswith("large long-necked wading bird")
    for id in ("n02124076", "n99999999", "x02124075", "n2124075", "shelf 3", ""):
        assert word_net.describe_id(id) == ""


def test_quoted_authors_are_no_meaning(word_net):
    meaning = "broadcasting visual images of stationary or moving objects"  # "...; - Ernie Kovacs"
    assert word_net.describe_id("n06277280") == meaning


def test_senses_of_a_name_begin_with_the_way_it_is_written(word_net):
    ids = [id for id, _ in word_net.senses_of("crane")]
    assert ids[:2] == ["n03126707", "n02012849"]  # the machine, then the bird
    assert sorted(ids) == sorted(id for id, _ in word_net.senses_of("Crane"))
    assert "writer" in word_net.senses_of("Crane")[0][1]


def test_case_and_plural_are_taken_off_and_nothing_else(word_net):
    cat = [("n02124075", "a domestic cat of Egypt")]
    assert word_net.senses_of("Egyptian cat") == word_net.senses_of("EGYPTIAN CAT") == cat
    assert word_net.senses_of("egyptian cats") == cat
    assert word_net.senses_of("Zebras") == word_net.senses_of("zebra") != []
    for name in ("Granny-Smith", "maple tree", "zebr", "", "quickly"):
        assert word_net.senses_of(name) == []


def test_where_there_is_none_the_message_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setattr("nltk.data.path", [])  # a folder that is named joins it
    with pytest.raises(ValueError, match="not in .*nltk.downloader wordnet.*NLTK_DATA=FOLDER"):
        WordNet(str(tmp_path)).describe_id("n02124075")
    (tmp_path / "corpora").mkdir()
    (tmp_path / "corpora" / "wordnet.zip").write_bytes(b"damaged")
    with pytest.raises(ValueError, match="NLTK does not open .*wordnet.zip"):
        WordNet(str(tmp_path)).senses_of("crane")
