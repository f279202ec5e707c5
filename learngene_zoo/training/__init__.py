"""Training and evaluation: one loop for every method, and its parts."""
