"""BERT and RoBERTa: names in transformers' `BertModel` and `RobertaModel`."""

from big_align.interop.tables.mapping import Rule, list_block
from big_align.interop.tables.vit import HEADS

BERT = [
    Rule("token_embedding", "embeddings.word_embeddings", "embedding"),
    Rule("position_embedding", "embeddings.position_embeddings.weight", "array"),
    Rule("token_type_embedding", "embeddings.token_type_embeddings.weight", "first row"),
    Rule("embedding_norm", "embeddings.LayerNorm", "norm"),
    *list_block(
        "encoder.layer.{n}.",
        ("attention.output.LayerNorm", "output.LayerNorm"),
        [f"attention.self.{head}" for head in HEADS],
        ("attention.output.dense", "intermediate.dense", "output.dense"),
    ),
]

# RoBERTa's table of segments has one row; BERT's has two.
ROBERTA = [rule._replace(kind="only row") if rule.kind == "first row" else rule for rule in BERT]
