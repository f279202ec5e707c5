"""LSAMD: learngene search across multiple data sets. `method.py` is the algorithm box; start there."""
