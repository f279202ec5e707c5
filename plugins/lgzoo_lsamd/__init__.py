"""LSAMD: learngene search across multiple data sets. The algorithm is in `lsamd.py`."""
