"""What several configs share: no recipes, so that `--config` does not take them."""
