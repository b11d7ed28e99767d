"""Archives of data sets as their authors publish them, made into shards."""
