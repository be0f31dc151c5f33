"""Methods that keep no images of past tasks."""
