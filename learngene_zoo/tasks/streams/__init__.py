"""Streams: data that does not fit on the disk or in memory, read in order, shard after shard, in
windows.
"""
