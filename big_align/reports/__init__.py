"""A page about a run, in one file, from what its workdir holds."""
