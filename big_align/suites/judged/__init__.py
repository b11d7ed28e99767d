"""Data sets of human judgments: which text is right, and how similar two things are."""
