"""Examples of what a model finds, chosen from the results of an evaluator."""
