"""PyTorch code of the closed-form methods: everything here imports torch."""
