"""Vision transformers: names in transformers' `ViTModel`, CLIP and MLCD, in timm and open_clip."""

from big_align.interop.tables.mapping import Rule

VIT = [
    Rule("cls_token", "embeddings.cls_token", "flat"),
    Rule("(class_position,position_embedding)", "embeddings.position_embeddings", "flat grid"),
    Rule("patch_embedding", "embeddings.patch_embeddings.projection", "patches"),
    Rule("block_{n}/attention_norm", "encoder.layer.{n}.layernorm_before", "norm"),
    Rule("block_{n}/attention/query", "encoder.layer.{n}.attention.attention.query", "linear"),
    Rule("block_{n}/attention/key", "encoder.layer.{n}.attention.attention.key", "linear"),
    Rule("block_{n}/attention/value", "encoder.layer.{n}.attention.attention.value", "linear"),
    Rule("block_{n}/attention/out", "encoder.layer.{n}.attention.output.dense", "linear"),
    Rule("block_{n}/mlp_norm", "encoder.layer.{n}.layernorm_after", "norm"),
    Rule("block_{n}/mlp/up", "encoder.layer.{n}.intermediate.dense", "linear"),
    Rule("block_{n}/mlp/down", "encoder.layer.{n}.output.dense", "linear"),
    Rule("final_norm", "layernorm", "norm"),
]

CLIP_BLOCKS = [
    Rule("block_{n}/attention_norm", "encoder.layers.{n}.layer_norm1", "norm"),
    Rule("block_{n}/attention/query", "encoder.layers.{n}.self_attn.q_proj", "linear"),
    Rule("block_{n}/attention/key", "encoder.layers.{n}.self_attn.k_proj", "linear"),
    Rule("block_{n}/attention/value", "encoder.layers.{n}.self_attn.v_proj", "linear"),
    Rule("block_{n}/attention/out", "encoder.layers.{n}.self_attn.out_proj", "linear"),
    Rule("block_{n}/mlp_norm", "encoder.layers.{n}.layer_norm2", "norm"),
    Rule("block_{n}/mlp/up", "encoder.layers.{n}.mlp.fc1", "linear"),
    Rule("block_{n}/mlp/down", "encoder.layers.{n}.mlp.fc2", "linear"),
]
"""For CLIP's towers for images and for texts, in transformers."""

MLCD = [
    Rule("cls_token", "embeddings.class_embedding", "array"),
    Rule("class_angles", "class_pos_emb", "only row"),
    Rule("patch_embedding", "embeddings.patch_embedding", "bare patches"),
    Rule("input_norm", "pre_layrnorm", "norm"),
    *CLIP_BLOCKS,
    Rule("final_norm", "post_layernorm", "norm"),
]

CLIP = [
    Rule("cls_token", "embeddings.class_embedding", "array"),
    Rule("(class_position,position_embedding)", "embeddings.position_embedding.weight", "grid"),
    Rule("patch_embedding", "embeddings.patch_embedding", "bare patches"),
    Rule("input_norm", "pre_layrnorm", "norm"),
    *CLIP_BLOCKS,
    Rule("final_norm", "post_layernorm", "norm"),
]

TIMM_VIT = [
    Rule("cls_token", "cls_token", "flat"),
    Rule("(class_position,position_embedding)", "pos_embed", "flat grid"),
    Rule("position_embedding", "pos_embed", "flat grid"),  # without a class token
    Rule("patch_embedding", "patch_embed.proj", "patches"),
    Rule("input_norm", "norm_pre", "norm"),
    Rule("block_{n}/attention_norm", "blocks.{n}.norm1", "norm"),
    Rule("block_{n}/attention/(query,key,value)", "blocks.{n}.attn.qkv", "fused weight"),
    Rule("block_{n}/attention/out", "blocks.{n}.attn.proj", "linear"),
    Rule("block_{n}/mlp_norm", "blocks.{n}.norm2", "norm"),
    Rule("block_{n}/mlp/up", "blocks.{n}.mlp.fc1", "linear"),
    Rule("block_{n}/mlp/down", "blocks.{n}.mlp.fc2", "linear"),
    Rule("final_norm", "norm", "norm"),
]

OPEN_CLIP_BLOCKS = [
    Rule("block_{n}/attention_norm", "transformer.resblocks.{n}.ln_1", "norm"),
    Rule(
        "block_{n}/attention/(query,key,value)",
        "transformer.resblocks.{n}.attn",
        "fused linear",
    ),
    Rule("block_{n}/attention/out", "transformer.resblocks.{n}.attn.out_proj", "linear"),
    Rule("block_{n}/mlp_norm", "transformer.resblocks.{n}.ln_2", "norm"),
    Rule("block_{n}/mlp/up", "transformer.resblocks.{n}.mlp.c_fc", "linear"),
    Rule("block_{n}/mlp/down", "transformer.resblocks.{n}.mlp.c_proj", "linear"),
]
"""For CLIP's towers for images and for texts, in open_clip and in OpenAI's files."""

OPEN_CLIP = [
    Rule("cls_token", "class_embedding", "array"),
    Rule("(class_position,position_embedding)", "positional_embedding", "grid"),
    Rule("patch_embedding", "conv1", "bare patches"),
    Rule("input_norm", "ln_pre", "norm"),
    *OPEN_CLIP_BLOCKS,
    Rule("final_norm", "ln_post", "norm"),
]
