"""BERT and RoBERTa: names in transformers' `BertModel` and `RobertaModel`."""

from big_align.interop.tables.mapping import Rule

BERT = [
    Rule("token_embedding", "embeddings.word_embeddings", "embedding"),
    Rule("position_embedding", "embeddings.position_embeddings.weight", "array"),
    Rule("token_type_embedding", "embeddings.token_type_embeddings.weight", "first row"),
    Rule("embedding_norm", "embeddings.LayerNorm", "norm"),
    Rule("block_{n}/attention/query", "encoder.layer.{n}.attention.self.query", "linear"),
    Rule("block_{n}/attention/key", "encoder.layer.{n}.attention.self.key", "linear"),
    Rule("block_{n}/attention/value", "encoder.layer.{n}.attention.self.value", "linear"),
    Rule("block_{n}/attention/out", "encoder.layer.{n}.attention.output.dense", "linear"),
    Rule("block_{n}/attention_norm", "encoder.layer.{n}.attention.output.LayerNorm", "norm"),
    Rule("block_{n}/mlp/up", "encoder.layer.{n}.intermediate.dense", "linear"),
    Rule("block_{n}/mlp/down", "encoder.layer.{n}.output.dense", "linear"),
    Rule("block_{n}/mlp_norm", "encoder.layer.{n}.output.LayerNorm", "norm"),
]

# RoBERTa's table of segments has one row; BERT's has two.
ROBERTA = [rule._replace(kind="only row") if rule.kind == "first row" else rule for rule in BERT]
