"""Data that does not fit on the disk or in memory: read in order, shard after shard, with only a window of it held."""
