"""ML-Decoder: names in its authors' code."""

from big_align.interop.tables.mapping import Rule

ML_DECODER = [
    Rule("embed", "decoder.embed_standart", "linear"),
    Rule("queries", "decoder.query_embed.weight", "array"),
    Rule("query_norm", "decoder.layers.0.norm1", "norm"),
    Rule("attention/(query,key,value)", "decoder.layers.0.multihead_attn", "fused linear"),
    Rule("attention/out", "decoder.layers.0.multihead_attn.out_proj", "linear"),
    Rule("attention_norm", "decoder.layers.0.norm2", "norm"),
    Rule("mlp/up", "decoder.layers.0.linear1", "linear"),
    Rule("mlp/down", "decoder.layers.0.linear2", "linear"),
    Rule("mlp_norm", "decoder.layers.0.norm3", "norm"),
    Rule("group_kernel", "decoder.duplicate_pooling", "array"),
    Rule("group_bias", "decoder.duplicate_pooling_bias", "array"),
]
