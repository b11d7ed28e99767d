"""What is told of a compiled step: its bounds, a table, and the sum of a run's stages."""
