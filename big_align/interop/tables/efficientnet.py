"""EfficientNet: names in transformers, timm (`tf_efficientnet_*`) and efficientnet_pytorch."""

from big_align.interop.tables.mapping import Rule, prefix_table

EFFICIENTNET = [
    Rule("stem_conv", "embeddings.convolution", "conv"),
    Rule("stem_norm", "embeddings.batchnorm", "batch norm"),
    *prefix_table(
        [
            Rule("expand_conv", "expansion.expand_conv", "pointwise"),
            Rule("expand_norm", "expansion.expand_bn", "batch norm"),
            Rule("depthwise_kernel", "depthwise_conv.depthwise_conv", "depthwise"),
            Rule("depthwise_norm", "depthwise_conv.depthwise_norm", "batch norm"),
            Rule("squeeze_conv", "squeeze_excite.reduce", "biased pointwise"),
            Rule("excite_conv", "squeeze_excite.expand", "biased pointwise"),
            Rule("project_conv", "projection.project_conv", "pointwise"),
            Rule("project_norm", "projection.project_bn", "batch norm"),
        ],
        "block_{n}/",
        "encoder.blocks.{n}.",
    ),
    Rule("head_conv", "encoder.top_conv", "pointwise"),
    Rule("head_norm", "encoder.top_bn", "batch norm"),
]

TIMM_EFFICIENTNET = [
    Rule("stem_conv", "conv_stem", "conv"),
    Rule("stem_norm", "bn1", "batch norm"),
    # Blocks of the first stage do not expand, so their norms and convolutions count from one lower.
    Rule("block_{n}/depthwise_norm", "blocks.{s}.{i}.bn1", "batch norm", stage=0),
    Rule("block_{n}/project_conv", "blocks.{s}.{i}.conv_pw", "pointwise", stage=0),
    Rule("block_{n}/project_norm", "blocks.{s}.{i}.bn2", "batch norm", stage=0),
    Rule("block_{n}/expand_conv", "blocks.{s}.{i}.conv_pw", "pointwise"),
    Rule("block_{n}/expand_norm", "blocks.{s}.{i}.bn1", "batch norm"),
    Rule("block_{n}/depthwise_kernel", "blocks.{s}.{i}.conv_dw", "depthwise"),
    Rule("block_{n}/depthwise_norm", "blocks.{s}.{i}.bn2", "batch norm"),
    Rule("block_{n}/squeeze_conv", "blocks.{s}.{i}.se.conv_reduce", "biased pointwise"),
    Rule("block_{n}/excite_conv", "blocks.{s}.{i}.se.conv_expand", "biased pointwise"),
    Rule("block_{n}/project_conv", "blocks.{s}.{i}.conv_pwl", "pointwise"),
    Rule("block_{n}/project_norm", "blocks.{s}.{i}.bn3", "batch norm"),
    Rule("head_conv", "conv_head", "pointwise"),
    Rule("head_norm", "bn2", "batch norm"),
]

# Also for efficientnet_lite_pytorch, whose Lite models have the same names.
EFFICIENTNET_PYTORCH = [
    Rule("stem_conv", "_conv_stem", "conv"),
    Rule("stem_norm", "_bn0", "batch norm"),
    Rule("block_{n}/expand_conv", "_blocks.{n}._expand_conv", "pointwise"),
    Rule("block_{n}/expand_norm", "_blocks.{n}._bn0", "batch norm"),
    Rule("block_{n}/depthwise_kernel", "_blocks.{n}._depthwise_conv", "depthwise"),
    Rule("block_{n}/depthwise_norm", "_blocks.{n}._bn1", "batch norm"),
    Rule("block_{n}/squeeze_conv", "_blocks.{n}._se_reduce", "biased pointwise"),
    Rule("block_{n}/excite_conv", "_blocks.{n}._se_expand", "biased pointwise"),
    Rule("block_{n}/project_conv", "_blocks.{n}._project_conv", "pointwise"),
    Rule("block_{n}/project_norm", "_blocks.{n}._bn2", "batch norm"),
    Rule("head_conv", "_conv_head", "pointwise"),
    Rule("head_norm", "_bn1", "batch norm"),
]
