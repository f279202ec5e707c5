"""Descendants in closed form: without gradients and without labels."""
