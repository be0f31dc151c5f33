"""Settings for the tests of training."""

from helpers.threads import one_thread

__all__ = ["one_thread"]
