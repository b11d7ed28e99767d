"""The pieces of every tokenizer spell the text that they are made of."""

from big_align.data.text.roberta_tokenizer import RobertaTokenizer
from big_align.data.text.tokenizers import ClipTokenizer, WordPieceTokenizer
from tests.data.byte_pair_files import CORPUS, write_byte_pairs

TEXT = "a café with naïve cats, 12 of them"


def spell(tokenizer, text):
    ids, real = tokenizer([text])
    return tokenizer.pieces(ids[0][real[0]].tolist())


def test_clip(data_dir):
    path = f"{data_dir}/text/clip_bpe_simple_vocab_16e6.txt.gz"
    start, *pieces, end = spell(ClipTokenizer(path), TEXT)
    assert "".join(pieces).replace("</w>", " ").replace(" ", "") == TEXT.replace(" ", "")
    assert (start, end) == ("<|startoftext|>", "<|endoftext|>")


def test_wordpiece(data_dir):
    tokenizer = WordPieceTokenizer(f"{data_dir}/text/bert-base-uncased-vocab.txt")
    start, *pieces, end = spell(tokenizer, TEXT)
    assert (start, end) == ("[CLS]", "[SEP]")
    plain = TEXT.replace("é", "e").replace("ï", "i").replace(" ", "")
    assert "".join(piece.removeprefix("##") for piece in pieces) == plain


def test_roberta(tmp_path):
    tokenizer = RobertaTokenizer(*write_byte_pairs(tmp_path), length=200)
    for text in filter(str.isascii, CORPUS):
        start, *pieces, end = spell(tokenizer, text)
        assert (start, "".join(pieces), end) == ("<s>", text, "</s>")
