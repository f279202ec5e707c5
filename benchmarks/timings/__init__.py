"""The cases of benchmarks/speed.py, a module each."""
