"""Clients of a service that ``fecam serve`` runs: `Client`, and `AsyncClient` for asyncio."""

from fecam.client.client import AsyncClient, Client
from fecam.errors import ServiceError

__all__ = ["AsyncClient", "Client", "ServiceError"]
