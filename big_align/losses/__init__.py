"""Losses: pure mathematics on global arrays, and exact versions that need less memory."""
