"""Splits of a data set: their samples, their names, and those that are cut from others."""
