"""Weights and settings, to and from transformers, timm and open_clip.

from big_align import interop
clip = interop.read("path/to/clip-vit-base-patch32")
zimg = clip.model.apply(clip.variables, images, method="encode_image")
interop.save("exported", clip, format="open_clip")
"""

from big_align.interop.api import explained, read, save
from big_align.interop.formats.preprocessing import Preprocessing
from big_align.interop.formats.pretrained import Classifier, Pretrained

__all__ = ["Classifier", "Preprocessing", "Pretrained", "explained", "read", "save"]
