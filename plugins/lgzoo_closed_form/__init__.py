"""Closed-form descendants: any depth and width of an ancestry model, without gradients and without labels."""
