"""Nobody outside can tell what an event's id will draw: each loop draws with a secret, which only its log has."""

import json
from pathlib import Path
from typing import Any

import pytest
from litestar.testing import TestClient

from coterie.data.logs.records import Configure, decode, flatten
from coterie.data.logs.rules import Config
from coterie.data.logs.service_log import exported
from coterie.service.app import create_app
from coterie.service.coordination.coordinator import Coordinator
from coterie.service.core import bandit as module
from coterie.service.core.bandit import SECRET, Bandit
from coterie.service.files.exports import write_dsjson, write_parquet
from coterie.service.files.model_file import export_model
from coterie.service.http.keys import Keyring
from coterie.service.log.sqlite_store import SqliteStore
from coterie.service.snapshots import snapshot
from coterie.service.snapshots.recovery import recover
from tests.service.helpers import START, Clock, ask, bandit, decide, opened, settings_of, with_coordinator

RULES: dict[str, Any] = {"exploration": 1.0, "explore": "epsilon"}
ACTIONS = "abcdefghij"
REAL = module.new_secret


@pytest.fixture(autouse=True)
def known_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw as the service does: this replaces the fixture of the other tests."""
    monkeypatch.setattr(module, "new_secret", REAL)


def _choices(made: Bandit, at: int = START, visit: str = "e") -> list[int]:
    return [decide(made, ask(f"{visit}{k}", actions=ACTIONS), at).choice for k in range(200)]


def test_two_new_loops_choose_differently_for_the_same_ids() -> None:
    """Of 200 uniform choices among ten, about 20 are equal by chance; 80 or more are as likely as one in 10^24."""
    first, second = _choices(bandit(**RULES)), _choices(bandit(**RULES))
    assert sum(a == b for a, b in zip(first, second, strict=True)) < 80


def test_two_new_loops_hold_back_different_users() -> None:
    def held(made: Bandit) -> list[str]:
        return [decide(made, ask(f"e{k}", f"user-{k}")).arm for k in range(200)]

    first, second = held(bandit(holdback=0.5)), held(bandit(holdback=0.5))
    assert 40 < sum(a == b for a, b in zip(first, second, strict=True)) < 160


def test_what_if_does_not_tell_what_an_id_will_draw() -> None:
    made = bandit(**RULES)
    imagined = [made.what_if(ask(f"e{k}", actions=ACTIONS))[0].choice for k in range(200)]
    assert sum(a == b for a, b in zip(imagined, _choices(made), strict=True)) < 80


def test_the_secret_is_made_once_and_kept_by_log_and_snapshot(tmp_path: Path) -> None:
    settings = settings_of(tmp_path / "log.db", Config(**RULES))
    found: list[bytes] = []

    async def work(coordinator: Coordinator) -> None:
        found.append(coordinator.bandit.secret)
        await coordinator.rank(ask(f"event-{len(found)}", actions=ACTIONS))
        await coordinator.configure(Config(wait=60.0 + len(found), **RULES))

    for _ in range(2):
        with_coordinator(settings, work)
    assert len(found[0]) == SECRET
    with opened(tmp_path / "log.db") as store:
        found += [recover(store).secret, recover(store, from_empty=True).secret]
        assert snapshot.dump(recover(store)) == snapshot.dump(recover(store, from_empty=True))
    assert len(set(found)) == 1


def test_a_log_without_a_secret_gets_one_at_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_of(tmp_path / "log.db", Config(**RULES))
    found: list[bytes] = []

    async def work(coordinator: Coordinator) -> None:
        found.append(coordinator.bandit.secret)

    with monkeypatch.context() as old:
        old.setattr(module, "new_secret", lambda: b"")
        with_coordinator(settings, work)
    for _ in range(2):
        with_coordinator(settings, work)
    assert found[0] == b""
    assert len(found[1]) == SECRET
    assert found[1] == found[2]


def test_no_answer_export_or_page_has_the_secret(tmp_path: Path) -> None:
    settings = settings_of(tmp_path / "log.db", Config(holdback=0.5, **RULES))
    coordinator = Coordinator(settings, SqliteStore(settings.store), Clock())
    with TestClient(create_app(coordinator, Keyring([], [])), base_url="http://127.0.0.1") as client:
        body = {"user": "ann", "actions": [{"id": "a"}, {"id": "b"}], "eventId": "e"}
        said = [client.post("/v1/rank", json=body), client.post("/v1/what-if", json=body)]
        paths = [path for path in client.get("/openapi.json").json()["paths"] if "{" not in path]
        paths += ["/", "/metrics", "/v1/events/e", "/v1/users/ann", "/readyz"]
        paths += ["/personalizer/v1.0/configurations/service", "/personalizer/v1.0/configurations/policy"]
        said += [client.get(path) for path in paths]
        made = coordinator.bandit
        assert made.trial is not None
        secrets = [made.secret, made.trial.salt.encode()]
        model = export_model(made)
        with_log = [answer.content for answer in said] + [model]
        records = list(flatten(coordinator.store.read()))
        names = dict(made.ids)
    assert any(isinstance(record, Configure) and record.secret == secrets[0] for _, record in records)
    write_parquet(records, names, tmp_path / "log.parquet")
    write_dsjson(records, names, tmp_path / "log.dsjson")
    rules = [record for _, _, record in exported(tmp_path / "log.parquet") if isinstance(record, Configure)]
    assert all(not record.secret and not record.salt for record in rules)
    for content in (*with_log, (tmp_path / "log.dsjson").read_bytes()):
        for secret in secrets:
            for form in (secret, secret.hex().encode(), json.dumps(secret.decode("latin-1")).encode()):
                assert form not in content


def test_a_replay_draws_nothing() -> None:
    """The choice is in the record, so a log without its secret gives the same state, apart from the secret."""
    made = bandit(**RULES)
    _choices(made)
    other = Bandit()
    for data in made.outbox:
        other.apply(decode(data))
    assert snapshot.dump(other) == snapshot.dump(made)
