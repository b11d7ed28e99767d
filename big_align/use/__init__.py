"""A loaded model at work: on images and texts, in searches, clusters and near-duplicates."""
