"""Use of a model that is trained: embeddings, classification and ranking in a few lines."""
