"""How pixels get from disk to views."""
