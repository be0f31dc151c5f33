"""Data sets: what they hold, where they come from."""
