"""LSAMD: learngene search across multiple data sets. Start with `lsamd.py`, which holds the algorithm."""
