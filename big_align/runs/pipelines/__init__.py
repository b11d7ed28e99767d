"""Functions that `config.data.pipeline` can name, and the loader for other people's trainers.

    --config.data.pipeline=big_align.runs.pipelines:image_text

TensorFlow is loaded when one of them is called.
"""

from big_align.runs.pipelines.image_text import image_text
from big_align.runs.pipelines.loader_dataset import as_dataset

__all__ = ["as_dataset", "image_text"]
