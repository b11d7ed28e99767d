"""Losses: pure mathematics on global arrays, and exact versions of it that need less memory."""
