"""The workers of `compare`, `tune` and `reproduce`: processes of this machine, or a Ray cluster."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from coterie.errors import ParameterError
from coterie.experiments.run.parallel import Workers

RayOption = Annotated[
    str | None,
    typer.Option(
        "--ray",
        metavar="ADDRESS",
        help="Work on a Ray cluster: ray://host:port, on a machine of it also host:port or auto; "
        "local starts one here.",
    ),
]


@contextmanager
def open_workers(workers: int | None, ray: str | None) -> Iterator[int | Workers | None]:
    """Yield the workers for `record_all`."""
    if ray is None:
        yield workers
        return
    if workers is not None:
        raise ParameterError(
            f"--workers {workers} and --ray {ray} are given; choose one: a cluster has its own workers"
        )
    from coterie.experiments.run.on_ray import on_ray

    with on_ray(ray) as cluster:
        yield cluster
