"""Formulas as MathML, which browsers draw without fonts or scripts."""

from typing import Any

from latex2mathml.converter import convert


def write_fence(source: str, language: str, css_class: str, *_: Any, **__: Any) -> str:
    """Writes a fenced block of LaTeX."""
    return f'<div class="{css_class}">{convert(source, display="block")}</div>'
