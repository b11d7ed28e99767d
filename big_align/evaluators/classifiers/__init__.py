"""Classifiers of frozen features, each fitted for a strength of its penalty."""
