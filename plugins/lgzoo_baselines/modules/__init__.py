"""PyTorch code of the baselines, in files named as the methods: everything here imports torch."""
