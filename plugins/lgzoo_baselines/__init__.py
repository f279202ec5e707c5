"""Baselines, and published methods that choose, learn or generate parts of a model."""
