"""Evaluators: each takes functions that embed, and data, and returns named numbers."""
