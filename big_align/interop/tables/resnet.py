"""ResNet: names in transformers' `ResNetModel` and in timm's `resnet*`."""

from big_align.interop.tables.mapping import Rule, prefix_table

RESNET = [
    Rule("stem_conv", "embedder.embedder.convolution", "conv"),
    Rule("stem_norm", "embedder.embedder.normalization", "batch norm"),
    *prefix_table(
        [
            *(Rule(f"conv_{j}", f"layer.{j}.convolution", "conv") for j in range(3)),
            *(Rule(f"norm_{j}", f"layer.{j}.normalization", "batch norm") for j in range(3)),
            Rule("shortcut_conv", "shortcut.convolution", "conv"),
            Rule("shortcut_norm", "shortcut.normalization", "batch norm"),
        ],
        "block_{n}/",
        "encoder.stages.{s}.layers.{i}.",
    ),
]

TIMM_RESNET = [
    Rule("stem_conv", "conv1", "conv"),
    Rule("stem_norm", "bn1", "batch norm"),
    *prefix_table(
        [
            *(Rule(f"conv_{j}", f"conv{j + 1}", "conv") for j in range(3)),
            *(Rule(f"norm_{j}", f"bn{j + 1}", "batch norm") for j in range(3)),
            Rule("shortcut_conv", "downsample.0", "conv"),
            Rule("shortcut_norm", "downsample.1", "batch norm"),
        ],
        "block_{n}/",
        "layer{s1}.{i}.",
    ),
]
