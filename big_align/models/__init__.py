"""Image and text towers, and the dual encoder that combines them."""
