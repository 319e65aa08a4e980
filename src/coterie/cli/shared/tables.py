"""The closing table of a command that compared policies, best first."""

from rich.table import Table


def closing_table(title: str, head: list[str], body: list[list[str]]) -> Table:
    """Return the table, its first line in bold: numbers stay whole and stand to the right, long names fold."""
    shown = Table(box=None, padding=(0, 2, 0, 0), title=title, title_justify="left")
    for number, name in enumerate(head):
        shown.add_column(name, justify="right" if number else "left", no_wrap=bool(number), overflow="fold")
    for number, line in enumerate(body):
        shown.add_row(*line, style="bold" if number == 0 else None)
    return shown
