"""Compute the cells of a grid, in this process, in workers or on Ray."""
