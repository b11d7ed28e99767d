"""Named data sets: what a table of a paper was measured on, and measuring it."""
