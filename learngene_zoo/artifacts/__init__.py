"""Artifacts on disk: learngenes, descendants, ancestry models, their cards, the shelf, the Hub."""
