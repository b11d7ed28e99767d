"""Configs of several languages are those of one, but for what languages change."""

import pytest

from big_align.config.overrides import load_config
from big_align.suites import catalog


@pytest.mark.parametrize(("argument", "english"), [("", "align_b7"), (":l2", "align_l2")])
def test_the_multilingual_model_is_the_english_one_with_another_vocabulary(argument, english):
    """ALIGN §8: "Model training follows the exact English configuration"."""
    config = load_config(f"configs/align_multilingual.py{argument}")
    expected = load_config(f"configs/{english}.py")
    assert (config.model.text.vocab_size, expected.model.text.vocab_size) == (250_000, 100_000)
    measured = [config.evaluators[name].benchmark for name in config.evaluators]
    assert sorted(measured) == sorted(catalog.expand(["multi30k_align"]))
    config.model.text.vocab_size, config.evaluators = 100_000, expected.evaluators
    assert config.to_dict() == expected.to_dict()


def test_languages_that_are_left_out_are_measured_all_the_same():
    def read(argument):
        config = load_config(f"configs/align_flickr8k_multilingual.py{argument}")
        sources = config.data.source, config.evaluators.retrieval.source
        trained, measured = (source.caption.removeprefix("json.") for source in sources)
        return trained, measured, config.data.language_temperature, config.tokenizer.vocabulary

    every, common = "{en,de,fr,cs}", "data/flickr8k_multilingual.txt"
    assert read("") == (every, every, 5.0, common)
    assert read(":without=de") == ("{en,fr,cs}", every, 5.0, common)
    assert read(":de") == ("{de}", "{de}", None, "data/flickr8k_de.txt")
    assert read(":locked") == read("") and read(":locked,without=de") == read(":without=de")
    for wrong in ("es", "with=de", "without=es", "without="):
        with pytest.raises(ValueError, match=r" is not one of en\|de\|fr\|cs\|without=en\|"):
            read(f":{wrong}")
