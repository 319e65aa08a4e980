"""Four services on one store behind a plain load balancer: any of them answers any request."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from coterie.bench.service.loadtest import request_bytes
from coterie.service.backup import back_up, restore
from coterie.service.http.routes.page import FILES
from tests.service.balancer import Balanced, balanced
from tests.service.crash_press import Facts, Request, Sender, connection
from tests.service.log import test_crash as crash

ACTIONS = [{"id": name} for name in "abc"]


@pytest.fixture(scope="module", params=["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def services(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Balanced]:
    folder = tmp_path_factory.mktemp("balanced")
    with crash.stores(request.param, folder) as new, balanced(new(0), folder) as running:
        yield running


def until(true: Callable[[], Any]) -> Any:
    end = time.monotonic() + crash.PATIENCE
    while not (found := true()):
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.02)
    return found


def equal(services: Balanced, path: str) -> Any:
    """Wait until all services answer the same, and return it."""

    def look() -> Any:
        found = [httpx.get(url + path, timeout=crash.PATIENCE) for url in services.each()]
        return found[0] if all(one.text == found[0].text for one in found) else None

    return until(look)


def test_every_route_works_whichever_service_the_balancer_chooses(services: Balanced, tmp_path: Path) -> None:
    with httpx.Client(base_url=services.url, timeout=crash.PATIENCE) as client:
        rules = {"holdback": 0.4, "wait": 60.0, "exploration": 0.2}
        assert client.put("/v1/configuration", json=rules).status_code == 200
        assert equal(services, "/v1/configuration").json()["holdback"] == 0.4
        shown: dict[str, set[str]] = {}
        for k in range(48):  # 24 users: that all are in one arm has a probability of 5 in a million
            body = {"user": f"user-{k % 24}", "eventId": f"event-{k}", "actions": ACTIONS}
            first, again = (client.post("/v1/rank", json=body) for _ in range(2))
            assert (first.status_code, first.text) == (201, again.text)
            rewarded = client.post(f"/v1/events/event-{k}/reward", json={"value": k % 2})
            assert rewarded.json()["outcome"] == "applied"
            arm = client.get(f"/v1/events/event-{k}").json()["arm"]
            shown.setdefault(f"user-{k % 24}", set()).add(arm)
        # The trial: a user is in one arm at every service, and all have the same sums.
        assert set(map(len, shown.values())) == {1}

        def learned() -> bool:
            trials = [httpx.get(f"{url}/v1/statistics").json()["trial"] for url in services.each()]
            return sum(arm["learned"] for arm in trials[0]["arms"]) == 48 and trials.count(trials[0]) == 4

        until(learned)
        assert {arm for arms in shown.values() for arm in arms} == {"champion", "holdback"}
        # What probes, Prometheus and a browser ask for.
        for _ in range(8):
            assert client.get("/readyz").json()["status"] == "ready"
            families = {one.name: one for one in text_string_to_metric_families(client.get("/metrics").text)}
            assert families["coterie_ready"].samples[0].value == 1
            assert families["coterie_behind_seconds"].samples[0].value < 5
            for path in FILES:
                assert client.get(path).status_code == 200
        # An evaluation: made at one service, known to all.
        assert client.put("/v1/evaluations/first", json={}).status_code == 201
        for _ in range(8):
            assert client.get("/v1/evaluations/first").json()["status"] in ("waiting", "running", "done")
        done = until(lambda: finished(client.get("/v1/evaluations/first").json()))
        assert (done["status"], done["error"]) == ("done", None)
        # An erasure, and a backup meanwhile.
        assert client.delete("/v1/users/user-3").status_code == 204
        made = back_up(services.store, tmp_path / "made.backup")
        assert made.users == 23
        assert client.delete("/v1/users/user-3").status_code == 404
        equal(services, "/v1/users")
        assert client.get("/v1/users/user-3").status_code == 404
    assert restore(tmp_path / "made.backup", str(tmp_path / "again.db")).same


def finished(found: Any) -> Any:
    return found if found["status"] not in ("waiting", "running") else None


class Careful(Sender):
    """Sends ranks, rewards and retries: what a client would send again once."""

    def _make(self) -> Request:
        while (made := super()._make()).kind not in ("rank", "reward", "again"):
            pass
        return made


async def press(
    services: Balanced, senders: list[Sender], ended: asyncio.Event, failed: Counter[str]
) -> None:
    """Send to the proxy until `ended`; a request that fails is sent once more, and then must be answered."""
    port = int(services.url.rpartition(":")[2])

    async def ask(sender: Sender, client: Any) -> bool:
        request = sender.next()
        sender.send(request)
        body = msgspec.json.encode(request.body)
        try:
            async with asyncio.timeout(crash.PATIENCE):
                status, answer = await client.ask(
                    request_bytes(request.method, request.path, body, f"127.0.0.1:{port}", None)
                )
            why = f"{status} {answer[:60]!r}"
        except OSError as error:
            status, why = 0, repr(error)
        if status == 0 or status >= 500:
            assert not request.sent, f"{request.kind} failed twice; the second time with {why}"
            request.sent = True
            failed[why] += 1
            return False
        sender.answered(request, status, answer)
        return True

    async def work(sender: Sender) -> None:
        while not ended.is_set():
            async with connection(port) as client:
                while await ask(sender, client) and not ended.is_set():
                    pass

    async with asyncio.TaskGroup() as group:
        for sender in senders:
            group.create_task(work(sender))


@pytest.mark.slow
@pytest.mark.parametrize("turns", [1, 10])
def test_a_rolling_restart_fails_nothing_that_a_client_with_one_retry_would_see(
    services: Balanced, turns: int
) -> None:
    facts, failed = Facts(), Counter[str]()

    async def go() -> None:
        senders: list[Sender] = [Careful(6 * turns + k, turns, facts, policies=False) for k in range(6)]
        ended = asyncio.Event()
        pressing = asyncio.create_task(press(services, senders, ended, failed))
        try:
            async with asyncio.timeout(crash.PATIENCE * turns):
                for place in list(range(len(services.ports))) * turns:
                    before = sum(facts.counts.values())
                    await asyncio.to_thread(services.end, place)
                    await asyncio.to_thread(services.wait_for_proxy, 3)  # a start takes longer than that
                    await asyncio.to_thread(services.begin, place)
                    await asyncio.to_thread(services.wait_for_proxy, 4)  # before the next one goes
                    while sum(facts.counts.values()) < before + 50 and not pressing.done():
                        await asyncio.sleep(0.01)
        finally:
            ended.set()
            await pressing

    asyncio.run(go())
    print(f"{dict(facts.counts)}, sent once more: {dict(failed)}")
    assert {"rank", "reward"} <= facts.counts.keys()
