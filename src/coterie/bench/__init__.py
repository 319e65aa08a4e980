"""Benchmarks: every claim about speed is a ratio measured in one run, against a known reference."""

import json
import os
import platform
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path

import numpy as np

from coterie import __version__
from coterie.arrays import JsonObject
from coterie.bench.measuring import Measured
from coterie.errors import ParameterError

SUITES = ("onehot", "dense", "growth", "policies", "sparse", "hierarchical", "startup")
# Only where they are named: they need a GPU, or the service.
BY_NAME = {
    "cuda": "suites.cuda",
    "decisions": "service.decisions",
    "sizes": "service.sizes",
    "snapshots": "service.many_users",
}


def run_suites(names: list[str], quick: bool, on_progress: Callable[[str], None]) -> Iterator[Measured]:
    """Yield the rows of the named suites, or of all of them, as they are measured."""
    for name in names:
        if name not in (*SUITES, *BY_NAME):
            raise ParameterError(f"unknown suite {name!r}; choose among {', '.join((*SUITES, *BY_NAME))}")
    for name in names or SUITES:
        module = BY_NAME.get(name, f"suites.{name}")
        yield from import_module(f"coterie.bench.{module}").rows(quick, on_progress)


def describe_machine() -> JsonObject:
    """Return what a reader needs to compare the numbers: processor, system and versions."""
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        named = [line for line in info.read_text().splitlines() if "model name" in line]
        model = named[0].split(":", 1)[1].strip() if named else model
    numba, llvm = import_module("numba"), import_module("llvmlite.binding")
    return {
        "processor": model,
        "compiled for": numba.config.CPU_NAME or llvm.get_host_cpu_name(),
        "cores": os.cpu_count(),
        "system": platform.platform(terse=True),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "numba": numba.__version__,
        "coterie": __version__,
    }


def write_rows(rows: list[Measured], path: Path) -> None:
    """Write rows as a JSON list."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([row._asdict() for row in rows], indent=2) + "\n")
