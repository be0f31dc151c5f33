"""Methods whose class statistics move with the network that goes on learning."""
