"""Measurements: one module a subject, each with `run`, and the records they leave."""
