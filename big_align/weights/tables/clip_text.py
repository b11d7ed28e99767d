"""CLIP's text tower: names in transformers' `CLIPTextModel` and in open_clip."""

from big_align.weights.tables.mapping import Rule
from big_align.weights.tables.vit import CLIP_BLOCKS, OPEN_CLIP_BLOCKS

CLIP = [
    Rule("token_embedding", "embeddings.token_embedding", "embedding"),
    Rule("position_embedding", "embeddings.position_embedding.weight", "array"),
    *CLIP_BLOCKS,
    Rule("final_norm", "final_layer_norm", "norm"),
]

OPEN_CLIP = [
    Rule("token_embedding", "token_embedding", "embedding"),
    Rule("position_embedding", "positional_embedding", "array"),
    *OPEN_CLIP_BLOCKS,
    Rule("final_norm", "ln_final", "norm"),
]
