"""The command line: a thin layer over the library."""

import sys

from coterie.errors import CoterieError


def main() -> None:
    """Run a command; an error of coterie's own is one line on stderr and exit code 2."""
    try:
        from coterie.cli.app import app

        app(prog_name="coterie")
    except CoterieError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
