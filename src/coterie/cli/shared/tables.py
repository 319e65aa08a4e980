"""The table of results of a command that compared policies, best first."""

from rich.table import Table


def result_table(title: str, head: list[str], body: list[list[str]]) -> Table:
    """Return the table: first line bold, numbers right-aligned and unbroken, long names folded."""
    shown = Table(box=None, padding=(0, 2, 0, 0), title=title, title_justify="left")
    for number, name in enumerate(head):
        shown.add_column(name, justify="right" if number else "left", no_wrap=bool(number), overflow="fold")
    for number, line in enumerate(body):
        shown.add_row(*line, style="bold" if number == 0 else None)
    return shown
