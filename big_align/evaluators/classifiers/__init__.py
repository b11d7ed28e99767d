"""Classifiers of frozen features, each fitted with a given strength of its penalty."""
