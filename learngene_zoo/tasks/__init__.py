"""Named data sets with a role: what a learngene is extracted from, what a descendant is fine-tuned and judged on."""
