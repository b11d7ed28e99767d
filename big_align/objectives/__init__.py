"""One file an objective: what it encodes, its loss, its extra parameters."""
