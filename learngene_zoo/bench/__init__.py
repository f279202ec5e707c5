"""`lgzoo bench`: grids of methods, sizes, tasks and seeds; reports with intervals; claims with verdicts."""
