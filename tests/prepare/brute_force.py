"""What rules drop, counted in plain Python over lists of all pairs."""

import hashlib
import io
import itertools
from collections import Counter, defaultdict

from PIL import Image

from big_align.prepare.text_rules import fold_text, normalize_text, split_unigrams


def count(rows, rules, min_count=0, bigrams=False):
    """Returns how many pairs each rule would drop, and how many pairs and images are kept.

    Args:
      rows: (image, text) of those that can be read, in their order.
      rules: the numbers.
      min_count: a token that occurs less often is rare.
      bigrams: whether bigrams are tokens, too.
    """
    pictures = [Image.open(io.BytesIO(image)).convert("RGB") for image, _ in rows]
    pixels = [(p.size, hashlib.sha256(p.tobytes()).digest()) for p in pictures]
    texts = [normalize_text(text) for _, text in rows]
    words = [split_unigrams(text) for text in texts]
    pairs = [[*w, *(" ".join(p) for p in itertools.pairwise(w) if bigrams)] for w in words]
    often = Counter(token for tokens in pairs for token in tokens)
    images_of, texts_of = defaultdict(set), defaultdict(set)
    for image, text in zip(pixels, map(fold_text, texts), strict=True):
        images_of[text].add(image), texts_of[image].add(text)
    failed, seen = Counter(), set()
    kept = set()
    for (size, digest), text, tokens, ngrams in zip(pixels, texts, words, pairs, strict=True):
        image, same = (size, digest), fold_text(text)
        faults = {
            "small": min(size) <= rules.min_side,
            "elongated": max(size) >= rules.max_aspect * min(size),
            "crowded": len(texts_of[image]) > rules.max_texts,
            "shared": len(images_of[same]) > rules.max_images,
            "short": len(tokens) < rules.min_unigrams,
            "long": len(tokens) > rules.max_unigrams,
            "rare": any(often[token] < min_count for token in ngrams),
        }
        if not any(faults.values()):
            faults["repeated"] = (image, same) in seen
            seen.add((image, same))
        failed.update(name for name, fault in faults.items() if fault)
        if not any(faults.values()):
            kept.add(image)
    return dict(failed), len(seen), len(kept)
