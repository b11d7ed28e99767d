"""Offline jobs: each is a small command line over library functions."""
