"""The workers of `compare`, `tune` and `reproduce`: processes of this machine, or a GPU."""

from typing import Annotated

import typer

from coterie.errors import ParameterError
from coterie.experiments.run.parallel import Workers

EngineOption = Annotated[
    str | None,
    typer.Option(
        "--engine",
        help="`cuda` plays all runs of CAB over feature vectors side by side on a GPU, and the others in "
        "processes; cuda?device=cuda:1 names the device.",
    ),
]


def open_workers(workers: int | None, engine: str | None = None) -> int | Workers | None:
    """Return the workers for `record_all`."""
    if engine is None:
        return workers
    if workers is not None:
        raise ParameterError(f"--workers {workers} and --engine {engine} are given; choose one")
    if engine.partition("?")[0] != "cuda":
        raise ParameterError(f"--engine is {engine!r}, expected cuda")
    from coterie.engines.address import open_engine

    device = open_engine(engine).device  # says if JAX is missing
    from coterie.experiments.run.on_device import on_device

    return on_device(device)
