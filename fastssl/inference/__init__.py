"""What is done with a trained run: evaluate, predict, pseudo-label a store, export.

Everything here needs the run folder alone. Nothing here trains.
"""
