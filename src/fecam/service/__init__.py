"""A model behind HTTP: the only importer of the web framework."""

from fecam.service.settings import Limits, ServiceSettings

__all__ = ["Limits", "ServiceSettings"]
