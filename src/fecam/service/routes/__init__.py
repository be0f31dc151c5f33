"""What can be asked for; each file a few paths, thin: they read, ask the engine, and answer."""
