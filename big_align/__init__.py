"""Training, evaluation and use of image-text dual encoders.

    import big_align
    model = big_align.load("workdirs/flickr8k")  # or a folder of transformers, open_clip or timm
    zimg = model.embed_images(["a.jpg", "b.jpg"])

Names are imported on first use, so that `import big_align` costs nothing; `__init__.pyi` is their
list.
"""

import ast
import importlib
from typing import Any

with open(f"{__file__}i", encoding="utf-8") as _file:
    _lines = [line for line in ast.parse(_file.read()).body if isinstance(line, ast.ImportFrom)]

FACE = {alias.name: str(line.module) for line in _lines for alias in line.names}
"""The public names, and the modules that define them."""

__all__ = [*FACE, "__version__"]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return importlib.import_module("importlib.metadata").version("big_align")
    if name not in FACE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(FACE[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
