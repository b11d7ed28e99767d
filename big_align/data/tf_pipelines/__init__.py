"""Functions that `config.data.pipeline` can name, and the loader for other people's trainers.

    --config.data.pipeline=big_align.data.tf_pipelines:image_text

A function like `image_text` knows the config, as config files do, and no room imports it.
TensorFlow is loaded when one of them is called.
"""

from big_align.data.tf_pipelines.image_text import image_text
from big_align.data.tf_pipelines.loader_dataset import as_dataset

__all__ = ["as_dataset", "image_text"]
