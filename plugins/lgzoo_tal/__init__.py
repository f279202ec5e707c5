"""TAL, PITH, GHN-3 and LoGAH: a hypernetwork reads the graph of a ViT and predicts its weights.

`ghn3.py`, `logah.py`, `tal.py` and `pith.py` are the algorithm boxes; start there. They share the
steps of `meta_training.py` and the expander of `predict.py`, GHN-3 and LoGAH the stages of
`unguided.py`.
"""
