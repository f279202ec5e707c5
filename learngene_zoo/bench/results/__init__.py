"""Rows of results, and statistics of them."""
