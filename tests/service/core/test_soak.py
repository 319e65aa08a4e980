"""R7: memory is bounded by the configured limits, however long it runs."""

import asyncio
import tracemalloc
from pathlib import Path

import httpx
import pytest

from coterie.bench.service.loadtest import LoadPlan, press
from coterie.service.core.question import Action, Question
from coterie.service.core.statistics import KEPT
from tests.service.helpers import START, bandit
from tests.service.process import service

RANKS = 3500  # of each connection, each time


@pytest.mark.parametrize(("policy", "parameters"), [("cab", {}), ("hierarchical", {"slots": 2048})])
def test_a_long_run_stays_within_its_limits(policy: str, parameters: dict[str, int]) -> None:
    made = bandit(
        policy=policy, max_event_bytes=270_000, max_users=50, max_items=40, wait=20.0, parameters=parameters
    )

    def run(first: int, rounds: int) -> int:
        for k in range(first, first + rounds):
            actions = [Action(f"item-{(k + j) % 40}") for j in range(5)]
            made.rank(Question(f"event-{k}", f"user-{k * 7919 % 1000}", actions), START + 100 * k)
            if k % 2:
                made.reward(f"event-{k - k % 3}", 1.0, START + 100 * k)
            made.drain()
            assert made.remembered.size <= 270_000
            assert len(made.users) <= 50
        return tracemalloc.get_traced_memory()[0]

    run(0, 2000)
    tracemalloc.start()
    first = run(2000, 1500)
    second = run(3500, 3000)
    tracemalloc.stop()
    assert second - first < 200_000, f"{second - first} bytes more after 3,000 further rounds"
    assert len(made.names) == len(made.ids) == len(made.users) == 50
    assert len(made.policies.known_items) == (40 if policy == "cab" else 0)
    assert len(made.statistics.minutes) <= KEPT
    assert made.policies.learned > 0
    for learner in made.policies.made.values():
        assert len(learner.users) <= 50


@pytest.mark.slow
def test_a_pressed_service_does_not_grow(tmp_path: Path) -> None:
    """Ranks and rewards of a million users against small limits: memory and disk stay where they were."""
    path = tmp_path / "log.db"
    (tmp_path / "settings.toml").write_text(
        "snapshot-every = 3000\nretention-days = 0\n"
        "[config]\nwait = 1.0\nmax-event-bytes = 1_000_000\nmax-users = 500\nmax-items = 30\n"
        "[config.parameters]\nslots = 65536\n"  # soon full: a table that fills up grows, as it may
    )
    plan = LoadPlan(seconds=3600, connections=16, users=1_000_000, actions=20, rewards=0.3, ranks=RANKS)
    options = ("--store", str(path), "--settings", str(tmp_path / "settings.toml"))
    kilobytes, disk = [], []
    with service(*options) as running, httpx.Client(base_url=running.url) as client:
        for _ in range(4):  # the first fills what is bounded
            tally = asyncio.run(press(running.url, plan))
            assert tally.failures == {}, client.get("/readyz").text
            for read in ("/metrics", "/v1/statistics", "/v1/decisions", "/v1/users", "/v1/items"):
                assert client.get(read).status_code == 200
            assert len(tally.decided) == 16 * RANKS
            kilobytes.append(_resident(running.process.pid))
            disk.append(sum(file.stat().st_size for file in tmp_path.glob("log.db*")) // 1024)
        numbers = client.get("/metrics").text
        assert "coterie_users 500.0" in numbers
        assert "coterie_events_remembered 1000.0" in numbers
        more = client.post(
            "/v1/rank", json={"user": "ann", "actions": [{"id": f"new-{k}"} for k in range(20)]}
        )
        assert more.status_code == 201  # ids take no row of their own
    print(f"{4 * 16 * RANKS} ranks, resident {kilobytes} KB, disk {disk} KB")
    growth = 1024 * (kilobytes[-1] - kilobytes[1]) / (2 * 16 * RANKS)
    # The allocator alone takes 6 MB now and then; the long version presses 23 times as much against the same limit.
    assert kilobytes[-1] - kilobytes[1] < 12_000, f"{growth:.0f} bytes a rank: {kilobytes} KB"
    assert disk[-1] < 4 * max(disk[0], 20_000), disk


def _resident(process: int) -> int:
    """Return how much memory a process holds, in KB."""
    status = Path(f"/proc/{process}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1])
