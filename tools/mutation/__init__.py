"""Mutants of the core and the copy of the checkout in which they are tested."""
