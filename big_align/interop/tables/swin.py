"""Swin: names in transformers' `SwinModel`, in timm's `swin_*`, and in its authors' files."""

from big_align.interop.tables.mapping import Rule, list_block
from big_align.interop.tables.vit import HEADS

BIASES = "relative_position_bias_table"
BLOCK = "encoder.layers.{s}.blocks.{i}."
TIMM_BLOCK = "layers.{s}.blocks.{i}."

SWIN = [
    Rule("patch_embedding", "embeddings.patch_embeddings.projection", "patches"),
    Rule("patch_norm", "embeddings.norm", "norm"),
    Rule("block_{n}/attention/relative_position_bias", f"{BLOCK}attention.self.{BIASES}", "array"),
    *list_block(
        BLOCK,
        ("layernorm_before", "layernorm_after"),
        [f"attention.self.{head}" for head in HEADS],
        ("attention.output.dense", "intermediate.dense", "output.dense"),
    ),
    Rule("merge_{s}/norm", "encoder.layers.{s}.downsample.norm", "norm"),
    Rule("merge_{s}/reduce", "encoder.layers.{s}.downsample.reduction", "bare linear"),
    Rule("final_norm", "layernorm", "norm"),
]

TIMM_SWIN = [
    Rule("patch_embedding", "patch_embed.proj", "patches"),
    Rule("patch_norm", "patch_embed.norm", "norm"),
    Rule("block_{n}/attention/relative_position_bias", f"{TIMM_BLOCK}attn.{BIASES}", "array"),
    *list_block(TIMM_BLOCK, ("norm1", "norm2"), ("attn.qkv",), ("attn.proj", "mlp.fc1", "mlp.fc2")),
    # timm merges at the start of a stage, transformers at the end of the one before.
    Rule("merge_{s}/norm", "layers.{s1}.downsample.norm", "norm"),
    Rule("merge_{s}/reduce", "layers.{s1}.downsample.reduction", "bare linear"),
    Rule("final_norm", "norm", "norm"),
]

ORIGINAL_SWIN = [rule._replace(theirs=rule.theirs.replace("{s1}", "{s}")) for rule in TIMM_SWIN]
"""In the authors' files, stages end with the merging with which timm's begin."""
