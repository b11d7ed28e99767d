"""Archives of data sets as their authors give them, made into shards."""
