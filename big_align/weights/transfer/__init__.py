"""What a model takes over from another: tables made to fit, and settings that must agree."""
