"""Where the rows of an index are: a contract of few verbs, and its implementations."""
