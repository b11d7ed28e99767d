"""Swin: names in transformers' `SwinModel`, in timm's `swin_*`, and in its authors' files."""

from big_align.interop.tables.mapping import Rule

SWIN = [
    Rule("patch_embedding", "embeddings.patch_embeddings.projection", "patches"),
    Rule("patch_norm", "embeddings.norm", "norm"),
    Rule("block_{n}/attention_norm", "encoder.layers.{s}.blocks.{i}.layernorm_before", "norm"),
    Rule(
        "block_{n}/attention/relative_position_bias",
        "encoder.layers.{s}.blocks.{i}.attention.self.relative_position_bias_table",
        "array",
    ),
    Rule(
        "block_{n}/attention/query",
        "encoder.layers.{s}.blocks.{i}.attention.self.query",
        "linear",
    ),
    Rule("block_{n}/attention/key", "encoder.layers.{s}.blocks.{i}.attention.self.key", "linear"),
    Rule(
        "block_{n}/attention/value",
        "encoder.layers.{s}.blocks.{i}.attention.self.value",
        "linear",
    ),
    Rule(
        "block_{n}/attention/out",
        "encoder.layers.{s}.blocks.{i}.attention.output.dense",
        "linear",
    ),
    Rule("block_{n}/mlp_norm", "encoder.layers.{s}.blocks.{i}.layernorm_after", "norm"),
    Rule("block_{n}/mlp/up", "encoder.layers.{s}.blocks.{i}.intermediate.dense", "linear"),
    Rule("block_{n}/mlp/down", "encoder.layers.{s}.blocks.{i}.output.dense", "linear"),
    Rule("merge_{s}/norm", "encoder.layers.{s}.downsample.norm", "norm"),
    Rule("merge_{s}/reduce", "encoder.layers.{s}.downsample.reduction", "bare linear"),
    Rule("final_norm", "layernorm", "norm"),
]

TIMM_SWIN = [
    Rule("patch_embedding", "patch_embed.proj", "patches"),
    Rule("patch_norm", "patch_embed.norm", "norm"),
    Rule("block_{n}/attention_norm", "layers.{s}.blocks.{i}.norm1", "norm"),
    Rule(
        "block_{n}/attention/relative_position_bias",
        "layers.{s}.blocks.{i}.attn.relative_position_bias_table",
        "array",
    ),
    Rule("block_{n}/attention/(query,key,value)", "layers.{s}.blocks.{i}.attn.qkv", "fused weight"),
    Rule("block_{n}/attention/out", "layers.{s}.blocks.{i}.attn.proj", "linear"),
    Rule("block_{n}/mlp_norm", "layers.{s}.blocks.{i}.norm2", "norm"),
    Rule("block_{n}/mlp/up", "layers.{s}.blocks.{i}.mlp.fc1", "linear"),
    Rule("block_{n}/mlp/down", "layers.{s}.blocks.{i}.mlp.fc2", "linear"),
    # timm merges at the start of a stage, transformers at the end of the one before.
    Rule("merge_{s}/norm", "layers.{s1}.downsample.norm", "norm"),
    Rule("merge_{s}/reduce", "layers.{s1}.downsample.reduction", "bare linear"),
    Rule("final_norm", "norm", "norm"),
]

ORIGINAL_SWIN = [rule._replace(theirs=rule.theirs.replace("{s1}", "{s}")) for rule in TIMM_SWIN]
"""In the authors' files, stages end with the merging with which timm's begin."""
