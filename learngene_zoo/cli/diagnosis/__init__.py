"""The command `doctor`: checks of the installation and of tasks, and a self-test."""
