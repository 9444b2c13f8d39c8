"""Colours that all pictures share."""

INK, MUTED, GRID = "#1f2933", "#7b8794", "#e4e7eb"
