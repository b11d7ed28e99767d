"""Dual encoders: names in transformers' `AlignModel` and `CLIPModel` and in open_clip's `CLIP`."""

from big_align.weights.tables import bert, clip_text, efficientnet, vit
from big_align.weights.tables.mapping import Rule, prefix_table

ALIGN = [
    *prefix_table(efficientnet.EFFICIENTNET, "image/", "vision_model."),
    *prefix_table(bert.BERT, "text/", "text_model."),
    Rule("project_text", "text_projection", "linear"),
]

CLIP = [
    *prefix_table(vit.CLIP, "image/", "vision_model."),
    *prefix_table(clip_text.CLIP, "text/", "text_model."),
    Rule("project_image", "visual_projection", "bare linear"),
    Rule("project_text", "text_projection", "bare linear"),
]

OPEN_CLIP_IMAGE = [
    *prefix_table(vit.OPEN_CLIP, "image/", "visual."),
    Rule("project_image", "visual.proj", "matrix"),
]

OPEN_CLIP_TEXT = prefix_table(clip_text.OPEN_CLIP, "text/", "")
