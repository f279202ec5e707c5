"""TAL, with GHN-3 and LoGAH beside it: a hypernetwork reads a ViT's graph and writes the weights.

`ghn3.py`, `logah.py` and `tal.py` are the algorithm boxes; start there. `meta_training.py` is what they share.
"""
