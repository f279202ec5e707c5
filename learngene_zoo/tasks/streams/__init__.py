"""Streams: data that does not fit on disk or in memory, read in order, shard by shard."""
