"""Examples of what a model finds, chosen from what an evaluation has computed."""
