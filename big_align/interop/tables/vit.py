"""Vision transformers: names in transformers' `ViTModel`, CLIP and MLCD, in timm and open_clip."""

from big_align.interop.tables.mapping import Rule, list_block

HEADS = ("query", "key", "value")

VIT = [
    Rule("cls_token", "embeddings.cls_token", "flat"),
    Rule("(class_position,position_embedding)", "embeddings.position_embeddings", "flat grid"),
    Rule("patch_embedding", "embeddings.patch_embeddings.projection", "patches"),
    *list_block(
        "encoder.layer.{n}.",
        ("layernorm_before", "layernorm_after"),
        [f"attention.attention.{head}" for head in HEADS],
        ("attention.output.dense", "intermediate.dense", "output.dense"),
    ),
    Rule("final_norm", "layernorm", "norm"),
]

CLIP_BLOCKS = list_block(
    "encoder.layers.{n}.",
    ("layer_norm1", "layer_norm2"),
    [f"self_attn.{head}_proj" for head in "qkv"],
    ("self_attn.out_proj", "mlp.fc1", "mlp.fc2"),
)
"""For CLIP's towers for images and for texts, in transformers."""

CLIP = [
    Rule("cls_token", "embeddings.class_embedding", "array"),
    Rule("(class_position,position_embedding)", "embeddings.position_embedding.weight", "grid"),
    Rule("patch_embedding", "embeddings.patch_embedding", "bare patches"),
    Rule("input_norm", "pre_layrnorm", "norm"),
    *CLIP_BLOCKS,
    Rule("final_norm", "post_layernorm", "norm"),
]

MLCD = [rule for rule in CLIP if "position" not in rule.ours]
MLCD.append(Rule("class_angles", "class_pos_emb", "only row"))

TIMM_VIT = [
    Rule("cls_token", "cls_token", "flat"),
    Rule("(class_position,position_embedding)", "pos_embed", "flat grid"),
    Rule("position_embedding", "pos_embed", "flat grid"),  # without a class token
    Rule("patch_embedding", "patch_embed.proj", "patches"),
    Rule("input_norm", "norm_pre", "norm"),
    *list_block(
        "blocks.{n}.", ("norm1", "norm2"), ("attn.qkv",), ("attn.proj", "mlp.fc1", "mlp.fc2")
    ),
    Rule("final_norm", "norm", "norm"),
]

OPEN_CLIP_BLOCKS = list_block(
    "transformer.resblocks.{n}.",
    ("ln_1", "ln_2"),
    ("attn",),
    ("attn.out_proj", "mlp.c_fc", "mlp.c_proj"),
    "fused linear",
)
"""For CLIP's towers for images and for texts, in open_clip and in OpenAI's files."""

OPEN_CLIP = [
    Rule("cls_token", "class_embedding", "array"),
    Rule("(class_position,position_embedding)", "positional_embedding", "grid"),
    Rule("patch_embedding", "conv1", "bare patches"),
    Rule("input_norm", "ln_pre", "norm"),
    *OPEN_CLIP_BLOCKS,
    Rule("final_norm", "ln_post", "norm"),
]
