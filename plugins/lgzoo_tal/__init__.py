"""TAL, GHN-3 and LoGAH: a hypernetwork reads the graph of a ViT and predicts its weights.

`ghn3.py`, `logah.py` and `tal.py` are the algorithm boxes; start there. The first two share `two_stages.py`, all of them `meta_training.py`.
"""
