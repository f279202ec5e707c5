"""The commands `evaluate`, `compare` and `predict`."""
