"""The data sets of the papers: where they are found, and how they are read."""
