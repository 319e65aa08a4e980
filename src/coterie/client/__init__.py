"""Clients of the service: `Client`, and `AsyncClient`, whose methods are awaited. They need httpx, and no NumPy."""

from coterie.client.calls import Ranked
from coterie.client.clients import AsyncClient, Client

__all__ = ["AsyncClient", "Client", "Ranked"]
