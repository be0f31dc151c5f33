"""Training of networks: the loop, its plan and hooks, and the training on the base classes."""
