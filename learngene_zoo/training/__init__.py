"""Training and evaluating: one loop for every method, and what it is made of."""
