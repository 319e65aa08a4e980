"""`coterie bench snapshots`, in small."""

from pathlib import Path

import pytest

from coterie.bench.service import many_users
from coterie.bench.service.many_users import Figures, figures, fill
from coterie.service.snapshots.recovery import recover
from tests.service.helpers import opened


def test_a_filled_store_is_started_from_and_measured(tmp_path: Path) -> None:
    path = tmp_path / "many.db"
    fill(str(path), 60)
    with opened(path) as store:
        assert store.positions() == [61]
        assert store.bounds() == (61, 181)
        assert len(recover(store).users) == 60
    found = figures(str(path), 60, seconds=0.0)
    assert found.users == 60
    assert found.effects > 600
    assert found.memory > 1e7
    assert min(found.whole, found.part) > 0
    assert min(found.start, found.held, found.waited, found.rank, found.reward) > 0


def test_its_rows_say_which_limits_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    few = Figures(100, 9, 1.0, 1e8, 1e5, 0.001, 0.001, 0.01, 0.01, 1e4, 1e-4, 2e-5)
    many = Figures(10**6, 9, 30.0, 2.5e9, 2e8, 0.01, 0.001, 0.02, 0.01, 1e6, 1.05e-4, 3e-5)
    monkeypatch.setattr(many_users, "measure", lambda users, told: few if users == 100 else many)
    rows = {row.name: row for row in many_users.rows(False, lambda text: None)}
    holds = {name: row.holds for name, row in rows.items() if row.holds is not None}
    assert holds == {
        "a start, 1,000,000 users": True,
        "peak memory, 1,000,000 users": False,
        "longest turn of the event loop during a snapshot, 1,000,000 users": True,
        "a rank with features, 1,000,000 users": True,
    }
    assert rows["a reward, 1,000,000 users"].ratio == pytest.approx(1.5)
