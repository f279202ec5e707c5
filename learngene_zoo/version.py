"""The version, alone in a file that costs nothing to read."""

__version__ = "0.1.0"
