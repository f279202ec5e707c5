"""Tasks: named data sets, on which learngenes are extracted, and descendants fine-tuned and
evaluated.
"""
