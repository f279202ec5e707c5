"""Families of forms that only the task `forms` uses."""
