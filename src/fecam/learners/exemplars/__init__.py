"""Methods that keep images of past tasks."""
