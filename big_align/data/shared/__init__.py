"""Folders that several processes write into at once, on this machine or elsewhere."""
