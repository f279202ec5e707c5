"""What a model is: its shape, the table of its parameters, and surgery on its tensors."""
