"""Runs: how and where to compute, the folder of a run, the cache of shared parts, and processes."""
