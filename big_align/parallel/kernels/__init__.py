"""Computations for one kind of device, each of which another function states plainly."""
