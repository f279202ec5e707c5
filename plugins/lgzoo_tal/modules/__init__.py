"""PyTorch code of the hypernetworks: everything here imports torch."""
