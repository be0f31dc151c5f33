"""Settings for the tests of learners."""

from helpers.threads import one_thread

__all__ = ["one_thread"]
