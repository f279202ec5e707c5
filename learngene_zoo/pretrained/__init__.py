"""Models that others made: where they come from, their formats, and their tensors' names."""
