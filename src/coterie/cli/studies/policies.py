"""`coterie policies`: lists the policies."""

import inspect
import json

from rich.console import Console
from rich.table import Table

from coterie.arrays import JsonObject
from coterie.cli.shared.options import JsonOption
from coterie.policies import POLICIES


def policies(as_json: JsonOption = False) -> None:
    """List the policies with their parameters and defaults."""
    listed: list[JsonObject] = [
        {
            "name": name,
            "about": (inspect.getdoc(kind) or "").splitlines()[0],
            "reference": kind.reference,
            "parameters": {p.name: p.default for p in inspect.signature(kind).parameters.values()},
        }
        for name, kind in POLICIES.items()
    ]
    if as_json:
        print(json.dumps(listed, indent=2, default=str))
        return
    shown = Table(box=None, padding=(0, 2, 1, 0))
    for column in ("policy", "what it does", "parameters"):
        shown.add_column(column, overflow="fold")
    for row in listed:
        settings = "\n".join(f"{key}={value!r}" for key, value in row["parameters"].items())
        about = f"{row['about']}\n[dim]{row['reference']}[/dim]"
        shown.add_row(f"[bold]{row['name']}[/bold]", about, settings)
    Console().print(shown)
