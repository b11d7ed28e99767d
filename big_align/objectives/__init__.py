"""Objectives, one file each: what it encodes, its loss, its extra parameters."""
