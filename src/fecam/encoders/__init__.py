"""Frozen encoders: from images and texts to features."""
