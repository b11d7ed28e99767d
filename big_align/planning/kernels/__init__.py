"""What moves the bytes of a compiled program: its kernels, and the modules they come from."""
