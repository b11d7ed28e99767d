"""ALIGN in many languages (Jia et al. 2021, §8), with a vocabulary of 250k pieces.

"Model training follows the exact English configuration", so everything but the vocabulary and what
is measured is that of another config. Arguments:
  (none)   configs/align_b7.py: EfficientNet-B7 and BERT-base, the model of the paper's study of
           data sets (§6), for 1M steps
  l2       configs/align_l2.py: EfficientNet-L2 and BERT-Large, which §8 measures: the mean recall
           of its English model, 92.2 (Table 11), is that of ALIGN on Flickr30K (Table 1)
Give it your pairs, --config.data.source.path, and a vocabulary of their texts in which languages
are evened out; where a member of the shards tells the language of a text, `language` names it:
  python -m big_align.tools.build_vocab --source='data/pairs-*.tar' --temperature=5 --size=250000 \
      --source_argument=language=json.language --output=data/vocabulary.txt
"""

from big_align.config.defaults import complete_config
from big_align.configs import align_b7, align_l2, common

MULTI30K = ("multi30k_en", "multi30k_de", "multi30k_translations_fr", "multi30k_translations_cs")
"""§8: five captions an image in English and German, one in French and Czech."""


def get_config(arg: str = ""):
    """Returns the config; `arg` is described above."""
    bases = {"": align_b7, "l2": align_l2}
    config = bases[common.choose(arg, ("l2",))[0]].get_config()
    config.model.text.vocab_size = 250_000  # §8: 250k wordpieces
    _, evaluate = common.paper_transforms()
    config.evaluators = {
        name: dict(name="benchmark", benchmark=name, data="data", transform=evaluate)
        for name in MULTI30K
    }
    return complete_config(config)
