"""PyTorch code of Learngene Pool and SN-Net: everything here imports torch."""
