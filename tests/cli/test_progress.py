"""The bars of a comparison: what they say while processes compile."""

import io

import pytest
from rich.console import Console

from coterie.cli.shared import progress
from coterie.cli.shared.progress import Compiling, open_bars
from coterie.experiments.run.parallel import Done


@pytest.mark.parametrize(("quiet", "shown"), [(-1.0, True), (1e9, False)])
def test_the_bars_count_what_is_compiled_if_it_takes_long(
    quiet: float, shown: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "QUIET", quiet)
    screen = io.StringIO()
    done = Done([0, 0])
    with open_bars(Console(file=screen, force_terminal=True, width=80)) as bars:
        compiling = Compiling(bars)
        compiling.show(done)
        for n in (1, 37):
            done.n_compiled = n
            compiling.show(done)
        compiling.end()
    said = screen.getvalue()
    assert ("Compiling, once on this machine: 37 functions" in said) is shown
    assert ("Compiling" in said) is shown
