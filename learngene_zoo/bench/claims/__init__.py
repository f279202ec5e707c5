"""Claims: their files, the cells that they need, and their verdicts."""
