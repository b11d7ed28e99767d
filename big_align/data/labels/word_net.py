"""WordNet 3.0 through NLTK: what synsets and nouns mean."""

import functools
import os
import re
import threading
import warnings
import zipfile
from collections.abc import Callable
from typing import Any

from big_align.core.errors import UserError

ID = re.compile(r"([nvars])(\d{8})")
"""Part of speech and offset of a synset, as ImageNet names its classes."""
READING = threading.Lock()
"""NLTK seeks and reads in one file."""
AUTHOR = re.compile(r"\s*;[;\s]*-.*")
"""What NLTK leaves of the quotation that ends some glosses: "...; ; --Jane Austen"."""


class WordNet:
    """The dictionary, which is opened on first use; that takes seconds.

    `folder` has `corpora/wordnet.zip` (or its unpacked content); None is where NLTK looks by
    itself, such as $NLTK_DATA. Every method raises UserError if WordNet is missing.
    """

    def __init__(self, folder: str | None = None):
        self._folder = folder

    def __reduce__(self) -> tuple[type, tuple[str | None]]:
        return type(self), (self._folder,)

    @functools.cached_property
    def _reader(self) -> Any:
        import nltk.data

        if self._folder and self._folder not in nltk.data.path:
            nltk.data.path.insert(0, self._folder)  # NLTK opens nothing outside its path
        folders = [self._folder] if self._folder else nltk.data.path
        try:
            reader, root = _open_reader(tuple(folders))
        except (LookupError, OSError, zipfile.BadZipFile) as error:
            raise UserError(_explain_absence(folders, error)) from error
        version = reader.get_version()
        if version != "3.0":
            raise UserError(f"WordNet in {root} is {version}; ids of classes are those of 3.0")
        return reader

    def describe_id(self, id: str) -> str:
        """Returns what a synset means, "" if there is none with this id."""
        synset = self._find_synset(id)
        return _clean_gloss(synset.definition()) if synset else ""

    def name_id(self, id: str) -> str:
        """Returns the first lemma of a synset, with spaces: "Egyptian cat" for "n02124075"."""
        synset = self._find_synset(id)
        if synset is None:
            raise UserError(f"{id!r} is no id of WordNet 3.0, as n02124075 is")
        return synset.lemma_names()[0].replace("_", " ")

    def senses_of(self, name: str) -> list[tuple[str, str]]:
        """Lists the ids and meanings of a noun, with spaces, such as "Egyptian cat".

        A lemma matches the name as written, else ignoring case, else ignoring case and with the
        plural removed (WordNet's morphy). Senses spelled like the name come before those that
        differ in case, and then the most frequent first, which is WordNet's order.
        """
        lemma = name.replace(" ", "_")
        senses = self._senses_of_lemma(lemma)
        if not senses:
            singular = self._reader.morphy(lemma.lower(), "n")
            senses = self._senses_of_lemma(singular) if singular else []
        return senses

    def lemma_of(self, word: str) -> str:
        """Returns the base form of a noun in lower case: "dog" for "dogs"; another word as it is.

        The forms are those of WordNet's morphy. If there are several, this takes the one that is
        most frequent in SemCor; NLTK's WordNetLemmatizer takes the shortest: "ga" for "gas".
        """
        with READING:
            forms = self._reader._morphy(word, "n")  # `morphy` returns only the first
            if len(forms) < 2:
                return forms[0] if forms else word
            counts = {form: self._count(form, "n") for form in forms}
        return max(forms, key=lambda form: (counts[form], -len(form), form != word))

    def nouns(self) -> list[str]:
        """Lists the lemmas of all nouns, in lower case; those of several words have spaces."""
        return sorted(name.replace("_", " ") for name in self._reader.all_lemma_names(pos="n"))

    def has_noun(self, name: str) -> bool:
        """Returns whether a name in lower case is itself a lemma, and not only a form of one."""
        return bool(self._reader.lemmas(name.replace(" ", "_"), "n"))

    def hypernyms_of(self, name: str) -> frozenset[str]:
        """Returns the names of all hypernyms of a noun, in any of its senses, in lower case."""
        with READING:
            synsets = self._reader.synsets(name.replace(" ", "_"), "n")
            return frozenset().union(*(self._hypernyms(synset.offset()) for synset in synsets))

    def is_mostly_noun(self, word: str) -> bool:
        """Returns whether a lemma is a noun in SemCor at least as often as all else it can be."""
        lemma = word.replace(" ", "_")
        others = [(form, kind) for kind in "var" for form in self._reader._morphy(lemma, kind)]
        count = sum(self._count(form, kind) for form, kind in others)
        return self._count(lemma, "n") >= count

    @functools.cached_property
    def _hypernyms(self) -> Callable[[int], frozenset[str]]:
        """What names the hypernyms of the synset at an offset; it remembers them."""

        @functools.cache
        def find(offset: int) -> frozenset[str]:
            synset = self._reader.synset_from_pos_and_offset("n", offset)
            above = synset.hypernyms() + synset.instance_hypernyms()
            names = {
                name.lower().replace("_", " ") for each in above for name in each.lemma_names()
            }
            return frozenset(names).union(*(find(each.offset()) for each in above))

        return find

    def _find_synset(self, id: str) -> Any:
        if not (match := ID.fullmatch(id)):
            return None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about an offset where no synset begins
            return self._reader.synset_from_pos_and_offset(match[1], int(match[2]))

    def _count(self, lemma: str, kind: str) -> int:
        return sum(sense.count() for sense in self._reader.lemmas(lemma, kind))

    def _senses_of_lemma(self, lemma: str) -> list[tuple[str, str]]:
        found = [  # NLTK adds the synsets of other forms of the word
            (lemma not in synset.lemma_names(), synset)
            for synset in self._reader.synsets(lemma, "n")
            if lemma.lower() in map(str.lower, synset.lemma_names())
        ]
        return [
            (f"n{synset.offset():08d}", _clean_gloss(synset.definition()))
            for _, synset in sorted(found, key=lambda pair: pair[0])
        ]


@functools.lru_cache(maxsize=1)
def _open_reader(folders: tuple[str, ...]) -> tuple[Any, Any]:
    """Opens the dictionary once, for all users; returns it and where it was found."""
    import nltk.data
    from nltk.corpus.reader.wordnet import WordNetCorpusReader

    class EnglishWordNet(WordNetCorpusReader):
        def map_wn(self, version="wordnet"):
            """Maps nothing: other languages would need it, and a second copy of WordNet."""

    root = nltk.data.find("corpora/wordnet/", paths=list(folders))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # other languages are absent
        return EnglishWordNet(root, None), root


def _clean_gloss(gloss: str) -> str:
    return AUTHOR.sub("", gloss).strip("; ")


def _explain_absence(folders: list[str], error: Exception) -> str:
    for folder in folders:
        for name in ("wordnet", "wordnet.zip"):
            path = os.path.join(folder, "corpora", name)
            if os.path.exists(path):
                return f"NLTK does not open {path}: {' '.join(str(error).strip('*').split())}"
    return (
        f"WordNet is not in {', '.join(folders) or 'any folder'} (as corpora/wordnet.zip); "
        "get it with python -m nltk.downloader wordnet, or name the folder that has it with "
        "--wordnet=FOLDER or NLTK_DATA=FOLDER"
    )
