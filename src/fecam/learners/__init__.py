"""Methods that train the network over tasks."""
