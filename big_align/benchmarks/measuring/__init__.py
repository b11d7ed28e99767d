"""Measuring a model on named data sets, and keeping what was measured."""
