"""Near-duplicate images: of test images among training images, and among these."""
