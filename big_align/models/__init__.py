"""Image and text towers, and the dual encoder that joins them."""
