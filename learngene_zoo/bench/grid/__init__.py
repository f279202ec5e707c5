"""The cells of a bench, and the search for their learning rates."""
