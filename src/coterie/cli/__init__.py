"""The command line: a thin layer over the library."""

import os
import sys

from coterie.errors import CoterieError

# Before NumPy is imported: it would multiply matrices of 90 rows in several threads. They wait for each other longer
# than one takes, and the last bits of a product depend on how many there are, but all who replay a log must agree.
os.environ["OPENBLAS_NUM_THREADS"] = "1"


def main() -> None:
    """Run a command; an error of coterie's own is one line on stderr and exit code 2."""
    try:
        from coterie.cli.app import app

        app(prog_name="coterie")
    except CoterieError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
