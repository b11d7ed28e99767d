"""What offline jobs over hundreds of millions of images cost: embeddings, clusters, duplicates."""
