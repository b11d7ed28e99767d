"""UniCL's dual encoder: names in the checkpoints that its authors released."""

from big_align.weights.tables import clip_text, swin
from big_align.weights.tables.mapping import Rule, prefix_table

TEXT = [
    rule._replace(theirs=rule.theirs.removeprefix("transformer.")) for rule in clip_text.OPEN_CLIP
]

UNICL = [
    *prefix_table(swin.ORIGINAL_SWIN, "image/", "image_encoder."),
    *prefix_table(TEXT, "text/", "text_encoder."),
    Rule("project_image", "image_projection", "matrix"),
    Rule("project_text", "text_projection", "matrix"),
]
