"""The workers of `compare`, `tune` and `reproduce`: processes of this machine, a Ray cluster, or a GPU."""

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

EngineOption = Annotated[
    str | None,
    typer.Option(
        "--engine",
        help="`cuda` plays all runs of CAB over feature vectors side by side on a GPU, and the others in "
        "processes; cuda?device=cuda:1 names the device.",
    ),
]


@contextmanager
def open_workers(
    workers: int | None, ray: str | None, engine: str | None = None
) -> Iterator[int | Workers | None]:
    """Yield the workers for `record_all`."""
    given = {"--workers": workers, "--ray": ray, "--engine": engine}
    chosen = [f"{name} {value}" for name, value in given.items() if value is not None]
    if len(chosen) > 1:
        raise ParameterError(f"{' and '.join(chosen)} are given; choose one, each has its own workers")
    if engine is not None:
        if engine.partition("?")[0] != "cuda":
            other = "--ray ADDRESS plays runs on a cluster"
            raise ParameterError(f"--engine is {engine!r}, expected cuda; {other}")
        from coterie.engines.address import open_engine

        device = open_engine(engine).device  # tells if JAX is missing
        from coterie.experiments.run.on_device import on_device

        yield on_device(device)
        return
    if ray is None:
        yield workers
        return
    from coterie.experiments.run.on_ray import on_ray

    with on_ray(ray) as cluster:
        yield cluster
