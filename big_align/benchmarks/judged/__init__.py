"""Data sets of what people have judged: which text is right, and how similar two things are."""
