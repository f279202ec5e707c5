"""The data sets of the papers, by catalogue: where they are had, and how they are read."""
