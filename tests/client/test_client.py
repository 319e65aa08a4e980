"""The clients, through a proxy that loses, delays and repeats: nothing is decided or learned twice."""

import asyncio
import inspect
import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest

import coterie
from coterie import AsyncClient, Client, NoAnswerError, ParameterError, Ranked, ServiceError
from coterie.client import calls
from coterie.service.core.events import Outcome
from tests.client.proxy import FAULTS, Proxy
from tests.service.process import Process, service

ROOT = Path(__file__).parents[2]
ACTIONS: list[Any] = ["jazz", {"id": "news", "features": [{"tone": "calm"}]}, "sport"]
# One attempt may take half a second; on a busy machine one that passes may too, and is then tried again.
PATIENT: dict[str, Any] = {"timeout": 0.5, "within": 200.0, "attempts": 200}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    settings = tmp_path_factory.mktemp("client") / "settings.toml"
    settings.write_text('[config]\naggregation = "sum"\nwait = 3600.0\n')
    with service("--store", str(settings.parent / "log.db"), "--settings", str(settings)) as made:
        yield made


@pytest.fixture
def proxy(server: Process) -> Iterator[Proxy]:
    with Proxy(server.url) as made:
        yield made


class Waiting:
    """An AsyncClient with the methods of a Client, so that both do the same tests."""

    def __init__(self, *given: Any, **more: Any) -> None:
        self._runner = asyncio.Runner()
        self._client: Any = AsyncClient(*given, **more)

    def __getattr__(self, name: str) -> Any:
        return lambda *given, **more: self._runner.run(getattr(self._client, name)(*given, **more))

    def __enter__(self) -> "Waiting":
        return self

    def __exit__(self, *error: object) -> None:
        self._runner.run(self._client.close())
        self._runner.close()


@pytest.fixture(params=[Client, Waiting], ids=["Client", "AsyncClient"])
def kind(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.mark.parametrize("fault", FAULTS)
def test_a_decision_is_made_once_whatever_happens_on_the_way(kind: Any, proxy: Proxy, fault: str) -> None:
    proxy.faults.extend([fault, fault])
    with kind(proxy.url, **PATIENT) as client, Client(proxy.url, **PATIENT) as direct:
        ranked = client.rank("ann", ACTIONS, [{"device": {"mobile": True}}], excluded=["sport"])
        assert isinstance(ranked, Ranked)
        assert not ranked.fallback
        assert ranked.chosen in ("jazz", "news")
        assert sum(ranked.probabilities.values()) == pytest.approx(1)
        sent = {body for line, body in proxy.seen if "/v1/rank" in line}
        assert len(sent) == 1  # the same bytes in every attempt, with the same event id
        assert json.loads(sent.pop())["eventId"] == ranked.event_id
        told = direct.explain(ranked)
        assert (told["chosen"], told["user"]) == (ranked.chosen, "ann")


@pytest.mark.parametrize("fault", FAULTS)
def test_a_reward_counts_once_whatever_happens_on_the_way(kind: Any, proxy: Proxy, fault: str) -> None:
    """Rewards are summed here, so that one that counted twice would show."""
    with kind(proxy.url, **PATIENT) as client:
        ranked = client.rank("bob", ACTIONS)
        proxy.faults.extend([fault, fault])
        first = client.reward(ranked, 0.25)
        assert first in ("applied", "duplicate")  # a lost answer may have said applied
        proxy.faults.clear()
        assert client.reward(ranked.event_id, 0.5) == "applied"
        assert client.explain(ranked)["reward"] == pytest.approx(0.75)


def test_a_reward_may_have_parts(kind: Any, proxy: Proxy) -> None:
    with kind(proxy.url, **PATIENT) as client:
        ranked = client.rank("bob", ACTIONS)
        assert client.reward(ranked, 0.5, parts={"clicked": 1.0}) == "applied"
        with pytest.raises(ServiceError, match="the reward has no value, and the parts 'clicked'"):
            client.reward(ranked, parts={"clicked": 1.0})


def test_a_user_is_given_friends(kind: Any, proxy: Proxy) -> None:
    with kind(proxy.url, **PATIENT) as client:
        proxy.faults.extend(["answer lost"])
        assert client.set_friends("a/b", ["bob", "carl"]) == {"bob": 1.0, "carl": 1.0}
        assert client.set_friends("bob", {"dora": 2.0}) == {"dora": 2.0}
        assert client.set_friends("a/b", []) == {}
        with pytest.raises(ParameterError, match="friends is the text 'bob'"):
            client.set_friends("ann", "bob")
        with pytest.raises(ServiceError, match="own friends"):
            client.set_friends("ann", ["ann"])


def test_a_reward_may_have_the_real_cost(kind: Any, proxy: Proxy) -> None:
    with kind(proxy.url, **PATIENT) as client:
        ranked = client.rank("bob", [{"id": "large", "cost": 0.5}])
        assert client.reward(ranked, 0.5, cost=0.25) == "applied"
        with pytest.raises(ServiceError, match="cost"):  # so it was sent
            client.reward(ranked, 0.5, cost=-1.0)


def test_a_batch_of_rewards_survives_a_proxy_that_loses_a_third(kind: Any, proxy: Proxy) -> None:
    with kind(proxy.url, **PATIENT) as client:
        events = [client.rank(f"user {k}", ACTIONS) for k in range(12)]
        proxy.faults.extend(["pass", "lost", "answer lost", "pass", "twice", "pass"] * 4)
        wrong = [("no such event", 1.0), (events[0], 7.0), (events[0], float("nan"))]
        outcomes = client.reward_many([(event, 0.5) for event in events] + wrong)
        assert outcomes[-3] == "unknown_event"
        assert [type(one) for one in outcomes[-2:]] == [ServiceError, ParameterError]
        assert {*outcomes[:-3]} <= {"applied", "duplicate"}
        assert [client.explain(event)["reward"] for event in events] == [0.5] * 12


@pytest.mark.parametrize("fault", ["lost", "held", "trickle", "busy", "garbage", "foreign", "cut"])
def test_the_fallback_is_shown_if_the_service_does_not_answer(kind: Any, proxy: Proxy, fault: str) -> None:
    proxy.always = fault
    with kind(proxy.url, timeout=0.05, within=0.15) as client:
        ranked = client.rank("ann", ACTIONS, fallback="news")
        assert (ranked.chosen, ranked.fallback, ranked.probabilities) == ("news", True, {})
        assert client.reward(ranked, 1.0) == "not_sent"  # the service may have decided otherwise
        assert client.activate(ranked) is False
        assert all(line.startswith("POST /v1/rank ") for line, _ in proxy.seen)  # one may arrive only now
        with pytest.raises(NoAnswerError, match="the service did not answer in"):
            client.rank("ann", ACTIONS)
        (failed,) = client.reward_many([("e", 1.0)])
        assert isinstance(failed, NoAnswerError)


def test_a_deferred_decision_waits_for_its_activation(kind: Any, proxy: Proxy) -> None:
    with kind(proxy.url, **PATIENT) as client:
        name = f"later / é {kind.__name__}"
        ranked = client.rank("ann", ACTIONS, deferred=True, event_id=name)
        assert ranked.event_id == name
        assert client.reward(ranked, 1.0) == "not_activated"
        proxy.faults.append("answer lost")
        assert client.activate(ranked) is True
        assert client.reward(ranked, 1.0) == "applied"
        assert client.activate("no such event") is False


def test_a_refusal_is_final_and_says_why(kind: Any, proxy: Proxy) -> None:
    with kind(proxy.url, **PATIENT) as client:
        with pytest.raises(ServiceError, match="400 invalid_request") as caught:
            client.reward("e", 7)
        assert (caught.value.status, caught.value.code) == (400, "invalid_request")
        assert len(proxy.seen) == 1
        client.rank("ann", ACTIONS, event_id="taken")
        with pytest.raises(ServiceError, match="decided for another request"):
            client.rank("bob", ACTIONS, event_id="taken", fallback="jazz")


def test_what_cannot_be_sent_is_refused_here(kind: Any, proxy: Proxy) -> None:
    with kind(proxy.url, **PATIENT) as client:
        wrong: list[dict[str, Any]] = [
            {"context": [{"x": float("nan")}]},
            {"context": [{"x": object()}]},
            {"fallback": "blues"},
            {"excluded": ["jazz"], "fallback": "jazz"},
        ]
        for more in wrong:
            with pytest.raises(ParameterError):
                client.rank("ann", ACTIONS, **more)
        assert proxy.seen == []


@pytest.mark.parametrize("wrong", [{"timeout": 0}, {"within": -1}, {"attempts": 0}, {"within": 10**9}])
def test_limits_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ParameterError, match="expected"):
        Client("http://127.0.0.1:1", **wrong)


def test_pauses_grow_and_end_with_the_time_or_the_attempts() -> None:
    call = calls.explain_call("e")
    attempts = calls.Attempts(call, calls.Limits(timeout=1.0, within=10.0, attempts=4), lambda: 100.0)
    pauses = []
    for _ in range(3):
        assert attempts.begin() == 1.0
        attempts.failed("lost")
        pauses.append(attempts.pause)
    assert all(0.025 * 2**k <= pause <= 0.05 * 2**k for k, pause in enumerate(pauses))
    attempts.begin()
    with pytest.raises(NoAnswerError, match="4 attempts"):
        attempts.failed("lost")
    now = iter([100.0, 109.5, 109.5])
    short = calls.Attempts(call, calls.Limits(timeout=1.0, within=10.0, attempts=4), lambda: next(now))
    assert short.begin() == 0.5
    with pytest.raises(NoAnswerError, match="busy"):  # the service asks for more time than is left
        short.answered(503, {"retry-after": "1"}, b'{"error": {"code": "busy", "message": "later"}}')


@pytest.mark.parametrize("content", [b"<html>no such page</html>", b"[]", b'{"error": "no such page"}'])
def test_a_refusal_by_another_server_is_final_too(content: bytes) -> None:
    attempts = calls.Attempts(calls.explain_call("e"), calls.Limits(1.0, 10.0, 4))
    attempts.begin()
    with pytest.raises(ServiceError, match="404 unknown: status 404"):
        attempts.answered(404, {}, content)


def test_the_client_knows_every_outcome_of_a_reward() -> None:
    assert {*get_args(calls.Outcome)} == {*get_args(Outcome), "not_sent"}


def test_both_clients_have_the_same_methods() -> None:
    def methods(kind: type) -> dict[str, str]:
        found = inspect.getmembers(kind, inspect.isfunction)
        return {name: str(inspect.signature(one)) for name, one in found if not name.startswith("_")}

    assert methods(Client) == methods(AsyncClient)
    assert methods(Client).keys() == {
        "rank",
        "reward",
        "reward_many",
        "activate",
        "set_friends",
        "explain",
        "close",
    }


def test_the_package_of_the_client_alone_needs_neither_numpy_nor_the_rest_of_coterie(tmp_path: Path) -> None:
    """Its files are laid out as in its wheel; imports of what it does not bring fail, as if it were not installed."""
    code = """
import sys
for name in ("numpy", "numba", "scipy", "safetensors", "msgspec", "litestar"):
    sys.modules[name] = None
import coterie
from coterie import AsyncClient, Client, NoAnswerError
with Client("http://127.0.0.1:9", timeout=0.2, within=0.2, attempts=1) as client:
    print(coterie.__file__, client.rank("ann", ["a", "b"], fallback="b").chosen)
try:
    coterie.CAB
except coterie.MissingExtraError as error:
    print(error)
"""
    settings = tomllib.loads((ROOT / "client" / "pyproject.toml").read_text())
    for source, place in settings["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"].items():
        found, made = ROOT / "client" / source, tmp_path / place
        made.parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if found.is_dir() else shutil.copy)(found, made)
    # Not in the folder of coterie, and without the path that an editable install adds.
    around = "import sys\nsys.path = [p for p in sys.path if not p.endswith('/src')]\n"
    told = subprocess.run([sys.executable, "-c", around + code], capture_output=True, text=True, cwd=tmp_path)
    assert told.stderr == ""
    first, second = told.stdout.splitlines()
    assert first == f"{tmp_path / 'coterie' / '__init__.py'} b"
    assert second == "coterie-client has no CAB; pip install coterie brings the library"


def test_a_missing_httpx_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "find_spec", lambda name: None)
    with pytest.raises(coterie.MissingExtraError, match="pip install httpx"):
        Client("http://127.0.0.1:8080")


def test_the_example_of_the_page_runs(server: Process, capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs" / "service.md").read_text()
    (code,) = re.findall(r"```py\n(from coterie import Client\n.*?)```", page, re.S)
    patient = code.replace("http://127.0.0.1:8080", server.url).replace(
        "timeout=0.5, within=2.0", "within=200.0"
    )
    exec(patient, {})
    first, second, third = capsys.readouterr().out.splitlines()
    assert first.endswith("False")
    assert (second, third) == ("applied", "['applied', 'unknown_event']")
