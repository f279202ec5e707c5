"""Learngene Pool, and SN-Net beside it: whole models, the stitches between them, and every path through both as a model.

`pool.py` and `snnet.py` are the algorithm boxes; start there.
"""
