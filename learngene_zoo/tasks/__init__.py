"""Tasks: named data sets for extracting learngenes and for fine-tuning and evaluating models."""
