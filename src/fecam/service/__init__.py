"""HTTP service for a model. No other package imports the web framework."""

from fecam.service.settings import Limits, ServiceSettings

__all__ = ["Limits", "ServiceSettings"]
