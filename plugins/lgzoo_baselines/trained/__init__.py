"""Training without a learngene: from scratch, fine-tuning, and distillation."""
