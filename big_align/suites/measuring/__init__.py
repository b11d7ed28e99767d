"""Measuring a model on named data sets, and storing the results."""
