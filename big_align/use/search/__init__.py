"""An index of images and captions: building, searching and serving it (ALIGN, Section 7)."""
