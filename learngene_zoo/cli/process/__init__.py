"""The process of a command: its streams, signals, errors and exit codes."""
