"""Baselines and controls: what every method has to beat, and what tells knowledge from scale."""
