"""What commands print: a table of compared policies, best first, or one result as text or JSON."""

from typing import Any

import typer
from rich.table import Table


def print_result(found: Any, as_json: bool, text: str) -> None:
    """Print a result of the service as JSON, or the text."""
    import msgspec

    typer.echo(msgspec.json.format(msgspec.json.encode(found), indent=2).decode() if as_json else text)


def result_table(title: str, head: list[str], body: list[list[str]]) -> Table:
    """Return the table: first line bold, numbers right-aligned and unbroken, long names folded."""
    shown = Table(box=None, padding=(0, 2, 0, 0), title=title, title_justify="left")
    for number, name in enumerate(head):
        shown.add_column(name, justify="right" if number else "left", no_wrap=bool(number), overflow="fold")
    for number, line in enumerate(body):
        shown.add_row(*line, style="bold" if number == 0 else None)
    return shown
