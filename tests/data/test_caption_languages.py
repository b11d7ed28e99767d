"""Captions that tell their language: how sources read them, and how they are drawn."""

import collections
import itertools
import json
import pickle

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from loaders import WORDS, assert_equal
from samples import encode_image, make_pixels, write_tar

from big_align.core.errors import UserError
from big_align.data.examples import BrokenExample, Caption, Example, language_of
from big_align.data.loading.image_pipeline import ImagePipeline
from big_align.data.loading.loader import TrainLoader
from big_align.data.loading.rows import RowStream
from big_align.data.loading.shuffle import PositionRandom
from big_align.data.loading.stream import ExampleStream
from big_align.data.loading.text_samplers import CaptionSampler, LanguageSampler
from big_align.data.sources.file_pairs import FilePairsSource
from big_align.data.sources.parquet_source import ParquetSource
from big_align.data.sources.tar_source import TarSource
from big_align.data.text import caption_checks
from big_align.data.text.caption_checks import count_languages, count_mixed_languages
from big_align.data.text.temperature import share_by_temperature

TEXTS = {"en": ["number 1", "n 1"], "de": ["number 2", "n 2"], "fr": ["number 3"]}
COUNTS = {"en": 500, "de": 400, "fr": 100}


def write_languages(folder, captions, count=1) -> str:
    """Writes a shard whose JSON has texts by language; returns its path."""
    members = []
    for number, texts in enumerate(captions * count):
        members.append((f"{number:05d}.png", encode_image(make_pixels(number))))
        members.append((f"{number:05d}.json", json.dumps(texts).encode()))
    return write_tar(folder / "x.tar", members)


def tell(captions):
    return [(language_of(caption), str(caption)) for caption in captions]


def test_a_caption_is_a_text_that_keeps_its_language():
    caption = Caption("ein Hund", "de")
    assert caption == "ein Hund" and hash(caption) == hash("ein Hund")
    assert pickle.loads(pickle.dumps(caption)).language == "de"
    assert (language_of(caption), language_of("ein Hund")) == ("de", "")
    assert type(str(caption)) is str


def test_braces_name_the_languages_and_their_fields(tmp_path):
    source = TarSource(write_languages(tmp_path, [TEXTS]), "json.{en,de,fr}")
    every = [("en", "number 1"), ("en", "n 1"), ("de", "number 2"), ("de", "n 2")]
    every += [("fr", "number 3")]
    assert tell(source.read(0, 0).captions) == tell(source.read_text(0, 0)[0]) == every
    one = TarSource(f"{tmp_path}/x.tar", "json.{de}")
    assert tell(one.read_text(0, 0)[0]) == every[2:4]
    none = TarSource(f"{tmp_path}/x.tar", "json.de")
    assert tell(none.read_text(0, 0)[0]) == [("", "number 2"), ("", "n 2")]


def test_a_language_may_be_missing_but_not_all(tmp_path):
    texts = [{"de": ["n 1"], "fr": None}, {"en": "", "de": [], "fr": ["n 2"]}, {"cs": ["n 3"]}]
    source = TarSource(write_languages(tmp_path, texts), "json.{en,de,fr}")
    assert tell(source.read_text(0, 0)[0]) == [("de", "n 1")]
    assert tell(source.read_text(0, 1)[0]) == [("fr", "n 2")]
    with pytest.raises(BrokenExample, match="it has no caption in any of en, de, fr"):
        source.read_text(0, 2)
    wrong = TarSource(write_languages(tmp_path, [{"en": "n 1", "de": 3.5}]), "json.{en,de}")
    with pytest.raises(BrokenExample, match="the caption is '3.5', not a text"):
        wrong.read_text(0, 0)


def test_an_example_may_name_the_language_of_its_captions(tmp_path):
    texts = [{"text": "ein Hund", "language": "de"}, {"text": "a dog"}]
    source = TarSource(write_languages(tmp_path, texts), "json.text", language="json.language")
    assert tell(source.read_text(0, 0)[0]) == [("de", "ein Hund")]
    assert tell(source.read_text(0, 1)[0]) == [("", "a dog")]
    for number, text in enumerate(texts):
        (tmp_path / f"{number}.png").write_bytes(encode_image(make_pixels(number)))
        (tmp_path / f"{number}.json").write_text(json.dumps(text))
    files = FilePairsSource(str(tmp_path), "json.text", language="json.language")
    assert count_languages(files) == {"de": 1}


def test_columns_of_parquet_tell_languages_as_members_do(tmp_path):
    image = encode_image(make_pixels(1))
    captions = [{"en": ["a dog", "dog"], "de": "ein Hund"}, {"en": None, "de": "n 2"}]
    table = {"jpg": [image] * 2, "captions": captions, "language": ["de", None], "txt": ["x", "y"]}
    path = str(tmp_path / "x.parquet")
    captions[0]["en"], captions[1]["en"] = '["a dog", "dog"]', None  # as tools write lists
    pq.write_table(pa.table(table), path)
    source = ParquetSource(path, caption="captions.{en,de}")
    every = [("en", "a dog"), ("en", "dog"), ("de", "ein Hund")]
    assert tell(source.read(0, 0).captions) == tell(source.read_text(0, 0)[0]) == every
    assert tell(source.read_text(0, 1)[0]) == [("de", "n 2")]
    named = ParquetSource(path, caption="txt", language="language")
    assert tell(named.read_text(0, 0)[0] + named.read_text(0, 1)[0]) == [("de", "x"), ("", "y")]
    with pytest.raises(UserError, match="has no column 'captions.fr'"):
        ParquetSource(path, caption="captions.{en,fr}")
    assert ParquetSource(path, caption="").read_text(0, 0)[0] == []


@pytest.mark.parametrize(
    "caption", ["json.{en", "json.en}", "json.{}", "json.{en,en}", "json.{en,}", "{en}.{de}"]
)
def test_wrong_braces_are_named(tmp_path, caption):
    path = write_languages(tmp_path, [TEXTS])
    with pytest.raises(UserError, match="does not read as a field with languages in braces"):
        TarSource(path, caption)
    with pytest.raises(UserError, match="names the languages, so language = 'json.l' is not used"):
        TarSource(path, "json.{en,de}", language="json.l")


def test_shares_by_hand():
    counts = {"en": 8, "de": 1}
    assert share_by_temperature(counts, 1.0) == pytest.approx({"en": 8 / 9, "de": 1 / 9})
    assert share_by_temperature(counts, 3.0) == pytest.approx({"en": 2 / 3, "de": 1 / 3})
    assert share_by_temperature(counts, np.inf) == {"en": 0.5, "de": 0.5}
    # the unit of the counts does not matter, and huge counts are no trouble
    large = {name: count * 1e300 for name, count in counts.items()}
    assert share_by_temperature(large, 3.0) == pytest.approx({"en": 2 / 3, "de": 1 / 3})
    for temperature in (0.0, -1.0, float("nan")):
        with pytest.raises(UserError, match="it must be above 0"):
            share_by_temperature(counts, temperature)
    with pytest.raises(UserError, match="there are no texts in 'fr'"):
        share_by_temperature({"fr": 0, "en": 1}, 1.0)


def draw(sampler, position, texts=TEXTS):
    captions = [Caption(text, name) for name, some in texts.items() for text in some]
    example = Example("key", None, captions, ())
    return sampler.draw(example, "name", PositionRandom(0, position))[0]


@pytest.mark.parametrize("temperature", [1.0, 5.0, np.inf])
def test_languages_are_drawn_with_their_shares_and_captions_alike(temperature):
    sampler = LanguageSampler(WORDS, COUNTS, temperature)
    number = 1500
    drawn = collections.Counter(tell(draw(sampler, n))[0] for n in range(number))
    expected = share_by_temperature(COUNTS, temperature)
    for language, texts in TEXTS.items():
        for text in texts:  # four standard deviations
            share = expected[language] / len(texts)
            assert abs(drawn[language, text] / number - share) < 4 * (share / number) ** 0.5


def test_shares_are_those_of_the_languages_that_an_example_has():
    sampler = LanguageSampler(WORDS, COUNTS, 1.0)
    some = {"de": ["n 2"], "fr": ["n 3"]}
    drawn = collections.Counter(tell(draw(sampler, n, some))[0][0] for n in range(1000))
    assert drawn["de"] / 1000 == pytest.approx(0.8, abs=0.05)
    assert {*tell(draw(sampler, 0, {"fr": ["n 3"]}))} == {("fr", "n 3")}
    # one that was not counted is as rare as the rarest
    other = {"en": ["n 2"], "xx": ["n 3"]}
    drawn = collections.Counter(tell(draw(sampler, n, other))[0][0] for n in range(1000))
    assert drawn["xx"] / 1000 == pytest.approx(1 / 6, abs=0.05)


def test_several_captions_are_different_ones_and_used_ones_are_the_first_of_each_language():
    every = {(name, text) for name, texts in TEXTS.items() for text in texts}
    for count in (2, 5, 7):
        sampler = LanguageSampler(WORDS, COUNTS, 2.0, captions_per_image=count)
        for position in range(20):
            drawn = tell(draw(sampler, position))
            assert len(set(drawn)) == len(drawn) == min(count, 5) and set(drawn) <= every
    sampler = LanguageSampler(WORDS, COUNTS, 2.0, captions_used=1)
    drawn = {tell(draw(sampler, position))[0] for position in range(100)}
    assert drawn == {("en", "number 1"), ("de", "number 2"), ("fr", "number 3")}


def test_equal_shares_of_equal_captions_are_those_of_all_captions():
    """With T = 1 and counts as they are every caption of an example is as likely as another."""
    counts = {name: len(texts) for name, texts in TEXTS.items()}
    sampler, plain = LanguageSampler(WORDS, counts, 1.0), CaptionSampler(WORDS)
    for one in (sampler, plain):
        drawn = collections.Counter(tell(draw(one, n))[0] for n in range(1000))
        assert max(abs(count / 1000 - 0.2) for count in drawn.values()) < 0.05


def make_loader(source, seed=0, **options) -> TrainLoader:
    counts = count_mixed_languages(source)
    texts = LanguageSampler(WORDS, counts, 5.0)
    stream = ExampleStream(source, 8, seed)
    rows = RowStream(stream, texts, ImagePipeline("resize(8)"))
    return TrainLoader(rows, **options)


def test_a_batch_is_a_function_of_seed_and_step(tmp_path):
    source = TarSource(write_languages(tmp_path, [TEXTS], 40), "json.{en,de,fr}")
    with make_loader(source) as loader:
        ahead = dict(enumerate(itertools.islice(loader.iterate(0), 12)))
        ahead = {n: {k: v.copy() for k, v in batch.items()} for n, batch in ahead.items()}
    rows = np.arange(1, 8, 2)
    with make_loader(source, rows=rows, num_threads=1) as part, make_loader(source, 1) as other:
        resumed = next(iter(part.iterate(7)))
        assert_equal(resumed, {name: x[rows] for name, x in ahead[7].items()})
        assert (other.batch(7)["text"] != ahead[7]["text"]).any()
    drawn = {tuple(row) for batch in ahead.values() for row in batch["text"].tolist()}
    text, _ = WORDS([text for texts in TEXTS.values() for text in texts])
    assert drawn == {tuple(row) for row in text.tolist()}


def test_languages_are_counted_and_what_cannot_be_drawn_is_named(tmp_path, monkeypatch):
    path = write_languages(tmp_path, [TEXTS, {"de": ["n 5"]}, {"en": [3.5]}], 4)
    source = TarSource(path, "json.{en,de,fr}")
    assert count_languages(source) == {"en": 8, "de": 12, "fr": 4}
    assert list(count_languages(source)) == ["en", "de", "fr"]
    with monkeypatch.context() as patch:
        patch.setattr(caption_checks, "MANY", 3)
        assert sum(count_languages(source).values()) == 6
    with pytest.raises(UserError, match="the source gives none: name them in its field `caption`"):
        count_mixed_languages(TarSource(path, "json.de"))
    with pytest.raises(UserError, match=r"has captions in two \(de\): leave it out"):
        count_mixed_languages(TarSource(path, "json.{de}"))
    with pytest.raises(UserError, match="there are no languages to draw from"):
        LanguageSampler(WORDS, {})
    with pytest.raises(UserError, match="temperature is 0; it must be above 0"):
        LanguageSampler(WORDS, COUNTS, 0.0)
