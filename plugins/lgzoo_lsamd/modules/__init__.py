"""PyTorch code of LSAMD: everything here imports torch."""
