"""Families of models: their specs, the tables of their tensors, and operations on the tensors."""
