"""ResNet: names in transformers' `ResNetModel` and in timm's `resnet*`."""

from big_align.interop.tables.mapping import Rule

RESNET = [
    Rule("stem_conv", "embedder.embedder.convolution", "conv"),
    Rule("stem_norm", "embedder.embedder.normalization", "batch norm"),
    *[
        rule
        for j in range(3)
        for rule in (
            Rule(
                f"block_{{n}}/conv_{j}",
                f"encoder.stages.{{s}}.layers.{{i}}.layer.{j}.convolution",
                "conv",
            ),
            Rule(
                f"block_{{n}}/norm_{j}",
                f"encoder.stages.{{s}}.layers.{{i}}.layer.{j}.normalization",
                "batch norm",
            ),
        )
    ],
    Rule("block_{n}/shortcut_conv", "encoder.stages.{s}.layers.{i}.shortcut.convolution", "conv"),
    Rule(
        "block_{n}/shortcut_norm",
        "encoder.stages.{s}.layers.{i}.shortcut.normalization",
        "batch norm",
    ),
]

TIMM_RESNET = [
    Rule("stem_conv", "conv1", "conv"),
    Rule("stem_norm", "bn1", "batch norm"),
    Rule("block_{n}/conv_0", "layer{s1}.{i}.conv1", "conv"),
    Rule("block_{n}/norm_0", "layer{s1}.{i}.bn1", "batch norm"),
    Rule("block_{n}/conv_1", "layer{s1}.{i}.conv2", "conv"),
    Rule("block_{n}/norm_1", "layer{s1}.{i}.bn2", "batch norm"),
    Rule("block_{n}/conv_2", "layer{s1}.{i}.conv3", "conv"),
    Rule("block_{n}/norm_2", "layer{s1}.{i}.bn3", "batch norm"),
    Rule("block_{n}/shortcut_conv", "layer{s1}.{i}.downsample.0", "conv"),
    Rule("block_{n}/shortcut_norm", "layer{s1}.{i}.downsample.1", "batch norm"),
]
