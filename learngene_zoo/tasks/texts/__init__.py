"""Tasks of texts: reading a user's texts, and encoding them as tokens."""
