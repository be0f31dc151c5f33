"""Suggestion: which items to label next, and which labels look wrong."""
