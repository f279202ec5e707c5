"""How and where to compute: a run, its folder, the cache of parts that runs share, and processes."""
