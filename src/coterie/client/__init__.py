"""Clients of the service: `Client`, and `AsyncClient`, whose methods are awaited. They need httpx, and no NumPy."""

from coterie.client.asynchronous import AsyncClient
from coterie.client.blocking import Client
from coterie.client.calls import Ranked

__all__ = ["AsyncClient", "Client", "Ranked"]
