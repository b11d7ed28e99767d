"""Use of a trained model: embeddings, classification and ranking in a few lines."""
