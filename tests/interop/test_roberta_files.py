"""Folders with RoBERTa's tokenizer are read and written; transformers gives the same ids."""

import json
import os
import pathlib
import shutil

import jax.numpy as jnp
import numpy as np
import pytest

from big_align import interop
from big_align.data.text.roberta_tokenizer import RobertaTokenizer
from big_align.errors import UserError
from big_align.interop.formats import architecture, text_files
from tests.data.byte_pair_files import CORPUS, write_byte_pairs
from tests.models.drawn_variables import draw_variables

LENGTH = 40
TEXTS = [
    *CORPUS,
    "",
    " ",
    "   ",
    "\t\n \r\n",
    " leading and trailing ",
    "double  spaces   and    more",
    "tabs\tand\nnew\n\nlines\r\nhere \n there",
    "it's IT'S they'll they’ll 'twas 's ' s don't''t we've'd",
    "1234 12,345.67 4x4 ٤٢ ½² Ⅷ 〇",
    "café cafe\u0301 ÜBER naïve ǆ ªº",
    "日本の写真。 中文 한국어 Русский \u0627\u0644\u0639\u0631\u0628\u064a\u0629 नमस\u094dत\u0947",
    "\U0001f600\U0001f600 \U0001f469\u200d\U0001f680 \U0001f1e9\U0001f1ea ❤\ufe0f x\U0001f600y",
    "\u00a0nbsp\u00a0 \u3000wide\u2003em\u2028line\u2029\u205f\u202f\u1680o\x85n",
    "zero\u200bwidth \ufeffmark \u180e soft\u00adhyphen",
    "controls \x00 \x1c\x1d\x1e\x1f \x1c \x0b\x0c \x7f a\x1cb",
    "snake_case __x__ a_1 _ -- ... !!! ?! #tag @at http://a.b/c?d=e&f=%20",
    "&amp; &lt;b&gt; <b>",
    "a very long text " * 30,
]
SPELLED = ["<s>", "a </s> b", "<pad> <unk>", "x<mask> y  <mask>", "<s>a</s>", "< s>"]


@pytest.fixture(scope="module")
def node(tmp_path_factory) -> dict[str, object]:
    vocabulary, merges = write_byte_pairs(tmp_path_factory.mktemp("files"))
    return {"name": "roberta", "vocabulary": vocabulary, "merges": merges, "length": LENGTH}


def make(node) -> RobertaTokenizer:
    return RobertaTokenizer(**{key: value for key, value in node.items() if key != "name"})


def make_pretrained(node):
    text = dict(width=16, depth=1, mlp_dim=32, heads=2)
    sizes = dict(vocab_size=make(node).vocab_size, max_length=LENGTH)
    tower = dict(name="roberta") | text | sizes
    inputs = jnp.ones((1, 1), jnp.int32), jnp.ones((1, 1), bool)
    variables = draw_variables(architecture.make_model(tower), *inputs)
    return interop.Pretrained(tower, variables, None, tokenizer=node)


@pytest.mark.parametrize("form", ["big_align", "transformers"])
def test_a_tower_keeps_its_tokenizer(tmp_path, node, form):
    interop.save(tmp_path / "out", make_pretrained(node), format=form)
    shutil.move(tmp_path / "out", tmp_path / "moved")
    read = interop.read(tmp_path / "moved").tokenizer
    for argument in ("vocabulary", "merges"):
        assert pathlib.Path(read[argument]).parent == tmp_path / "moved"
    assert make(read).fingerprint == make(node).fingerprint


def test_one_file_for_both_is_kept_once(tmp_path, node):
    ids = json.loads(pathlib.Path(node["vocabulary"]).read_text())
    lines = pathlib.Path(node["merges"]).read_text(encoding="utf-8").split("\n")[1:-1]
    whole = {"added_tokens": [], "model": {"type": "BPE", "vocab": ids, "merges": lines}}
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(whole))
    one = node | {"vocabulary": str(path), "merges": str(path)}
    for form in ("big_align", "transformers"):
        interop.save(tmp_path / form, make_pretrained(one), format=form)
        again = interop.read(tmp_path / form).tokenizer
        assert make(again).fingerprint == make(node).fingerprint
    (tmp_path / "other").mkdir()
    shutil.copy(node["merges"], tmp_path / "other" / "tokenizer.json")
    clash = one | {"merges": str(tmp_path / "other" / "tokenizer.json")}
    model = make_pretrained(one)
    model = interop.Pretrained(model.node, model.variables, None, tokenizer=clash)
    with pytest.raises(UserError, match="has two files tokenizer.json; rename one"):
        interop.save(tmp_path / "clash", model, format="big_align")


def make_folder(folder: pathlib.Path, node, **files) -> pathlib.Path:
    folder.mkdir()
    for argument in ("vocabulary", "merges"):
        shutil.copy(node[argument], folder)
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def test_folders_are_recognized(tmp_path, node):
    """The published folder has no class of its tokenizer, only that of its model."""
    published = make_folder(
        tmp_path / "a", node, config={"model_type": "roberta"}, tokenizer_config={}
    )
    read = text_files.read(published, 512)
    assert read["name"] == "roberta" and read["length"] == 512
    for number, (config, known) in enumerate(
        {
            ("RobertaTokenizer", False): True,
            ("RobertaTokenizerFast", None): True,
            ("RobertaTokenizer", True): False,  # a space before every text: other ids
            ("GPT2Tokenizer", False): False,
            ("XLMRobertaTokenizer", False): False,
        }.items()
    ):
        settings = {"tokenizer_class": config[0], "model_max_length": 77}
        settings |= {} if config[1] is None else {"add_prefix_space": config[1]}
        read = text_files.read(
            make_folder(tmp_path / str(number), node, tokenizer_config=settings), 512
        )
        assert (read is not None) == known
        assert not known or read["length"] == 77


def test_the_end_of_texts_is_found(node):
    assert text_files.find_end(node) == 2


def test_writing_names_a_missing_file(tmp_path, node):
    for argument in ("vocabulary", "merges"):
        lost = node | {argument: str(tmp_path / "lost")}
        with pytest.raises(UserError, match=f"the model's tokenizer: {argument}: no file '.*lost'"):
            text_files.write(lost, "roberta")


def check(ours: RobertaTokenizer, theirs, texts, **more):
    theirs = theirs(texts, padding="max_length", truncation=True, return_tensors="np", **more)
    ids, mask = ours(texts)
    for text, row, wanted in zip(texts, ids, theirs["input_ids"], strict=True):
        assert row.tolist() == wanted.tolist(), repr(text)
    np.testing.assert_array_equal(mask, theirs["attention_mask"])


@pytest.fixture
def transformers():
    os.environ["HF_HUB_OFFLINE"] = "1"
    return pytest.importorskip("transformers")


@pytest.mark.interop
def test_transformers_gives_the_same_ids(tmp_path, node, transformers):
    """Special tokens that a text spells out are plain text with us, and with them on request."""
    interop.save(tmp_path / "out", make_pretrained(node), format="transformers")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert type(theirs).__name__.startswith("RobertaTokenizer")
    check(make(node), theirs, TEXTS)
    check(make(node), theirs, SPELLED, split_special_tokens=True)

    theirs.save_pretrained(tmp_path / "again")
    read = text_files.read(tmp_path / "again", 512)
    assert make(read).fingerprint == make(node).fingerprint


@pytest.mark.interop
def test_transformers_gives_the_same_ids_of_real_captions(tmp_path, data_dir, transformers):
    captions = (data_dir / "text" / "alt_texts.txt").read_text(encoding="utf-8").split("\n")
    vocabulary, merges = write_byte_pairs(tmp_path, captions[:1000], count=200)
    theirs = transformers.RobertaTokenizer(vocab=vocabulary, merges=merges, model_max_length=LENGTH)
    check(RobertaTokenizer(vocabulary, merges, LENGTH), theirs, captions)
    check(
        RobertaTokenizer(vocabulary, merges, LENGTH),
        theirs,
        [f" {c.upper()} é" for c in captions[:3000]],
    )


@pytest.mark.interop
def test_transformers_gives_the_same_ids_of_random_signs(tmp_path, transformers):
    vocabulary, merges = write_byte_pairs(tmp_path)
    theirs = transformers.RobertaTokenizer(vocab=vocabulary, merges=merges, model_max_length=LENGTH)
    generator = np.random.default_rng(0)
    signs = [
        *map(chr, range(0x250)),
        *" \t\n'é\u0301\u200d\u3000日\U0001f600" * 20,
        *["'s", "'ll"] * 20,
    ]
    texts = ["".join(generator.choice(signs, 15)) for _ in range(2000)]
    check(RobertaTokenizer(vocabulary, merges, LENGTH), theirs, texts)
