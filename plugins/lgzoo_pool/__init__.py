"""Learngene Pool and SN-Net: models stitched together, and every path through them as a model.

The algorithms are in `pool.py` and `snnet.py`; start there.
"""
