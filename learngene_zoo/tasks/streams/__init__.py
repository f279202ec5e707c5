"""Data that does not fit the disk or the memory: read in order, shard after shard, only a window of it held."""
