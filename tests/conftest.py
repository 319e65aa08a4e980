"""What tests share: one Ray cluster a test process, since a start takes seconds."""

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[str]:
    """Be in a Ray cluster on this machine, and return its address."""
    pytest.importorskip("ray")
    from coterie.engines import connect

    with connect("local", cpus=2) as address:
        yield address
