"""Learngene Pool and SN-Net: whole models, the stitches between them, and every path through both as a model.

The algorithms are in `pool.py` and `snnet.py`; start there.
"""
