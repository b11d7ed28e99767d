"""What everything may use: types, errors, words, whole files, progress."""
