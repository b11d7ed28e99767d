"""A single-file page about a run, made from the contents of its workdir."""
