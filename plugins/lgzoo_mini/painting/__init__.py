"""Canvases, shapes, strokes and surfaces that the tasks are painted with."""
