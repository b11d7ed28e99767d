"""Named data sets: those that tables of papers are measured on, and measuring a model on them."""
