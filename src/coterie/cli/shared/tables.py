"""What commands print: a table of compared policies, best first, or one result as text or JSON."""

from typing import Any

import typer
from rich.console import Group
from rich.table import Table
from rich.text import Text

NAME = 15  # letters of a policy's name that always fit in one line


def print_result(found: Any, as_json: bool, text: str) -> None:
    """Print a result of the service as JSON, or the text."""
    import msgspec

    typer.echo(msgspec.json.format(msgspec.json.encode(found), indent=2).decode() if as_json else text)


def result_table(title: str, head: list[str], body: list[list[str]]) -> Group:
    """Return a title and the table: first line bold, numbers to the right; only names longer than NAME are folded."""
    shown = Table(box=None, padding=(0, 2, 0, 0))
    longest = max((len(line[0]) for line in body), default=0)
    shown.add_column(head[0], overflow="fold", min_width=min(longest, NAME))
    for name in head[1:]:
        shown.add_column(name, justify="right", no_wrap=True)
    for number, line in enumerate(body):
        shown.add_row(*line, style="bold" if number == 0 else None)
    return Group(Text(title, style="italic"), shown)
