"""`lgzoo bench`: grids of methods, sizes, tasks and seeds; reports; claims with verdicts."""
