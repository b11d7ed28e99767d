"""Weights and settings, to and from transformers, timm and open_clip.

from big_align import weights
clip = weights.read("path/to/clip-vit-base-patch32")
zimg = clip.model.apply(clip.variables, images, method="encode_image")
weights.save("exported", clip, format="open_clip")
"""

from big_align.weights.api import explained, list_formats, read, save, tell_formats
from big_align.weights.formats.preprocessing import Preprocessing
from big_align.weights.formats.pretrained import Classifier, Pretrained

__all__ = [
    "Classifier",
    "Preprocessing",
    "Pretrained",
    "explained",
    "list_formats",
    "read",
    "save",
    "tell_formats",
]
