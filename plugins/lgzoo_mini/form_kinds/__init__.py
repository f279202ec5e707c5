"""Kinds of forms that only the task `forms` shows."""
