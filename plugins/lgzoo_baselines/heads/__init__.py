"""Methods that cluster or share attention heads."""
