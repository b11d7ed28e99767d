"""Evaluators: each takes data and functions that embed, and returns named numbers."""
