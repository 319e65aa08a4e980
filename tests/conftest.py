"""What tests share: patience, and one Ray cluster a test process, since a start takes seconds."""

from collections.abc import Iterator

import httpx._config
import pytest
from hypothesis import HealthCheck, settings

# A machine that is busy may take long to answer; httpx gives up after 5 s unless told otherwise.
for name in ("connect", "read", "write", "pool"):
    setattr(httpx._config.DEFAULT_TIMEOUT_CONFIG, name, 300.0)
# Nor is an example wrong that took longer than 200 ms.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[str]:
    """Be in a Ray cluster on this machine, and return its address."""
    pytest.importorskip("ray")
    from coterie.engines import connect

    with connect("local", cpus=2) as address:
        yield address
