"""Recovery of a descendant without labels: its ancestry model teaches it on unlabelled images."""
