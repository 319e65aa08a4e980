"""The commands around the service, as one types them; and no route is left out of the documentation."""

import ast
import asyncio
import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from coterie.bench.service.loadtest import SERVERS, Dialect, LoadPlan, ServerProcess, check_plan, press
from coterie.cli.app import app
from coterie.data.logs.rules import Config
from coterie.errors import MissingExtraError, ParameterError
from coterie.service.app import NATIVE
from coterie.service.http.routes import page
from coterie.service.log import store
from coterie.service.settings import Durability, read_settings
from tests.service.helpers import Clock, ask, opened, settings_of, with_coordinator
from tests.service.process import service

run = CliRunner()
DOCS = (Path(__file__).parents[2] / "docs" / "service.md").read_text()


def _lived(path: Path) -> None:
    async def work(coordinator: object) -> None:
        from coterie.service.coordination.coordinator import Coordinator

        assert isinstance(coordinator, Coordinator)
        for k in range(8):
            await coordinator.rank(ask(f"e{k}", f"user-{k % 3}"))
            await coordinator.reward(f"e{k}", 0.5)

    with_coordinator(settings_of(path), work, Clock())


def test_keys_are_made_listed_and_dropped(tmp_path: Path) -> None:
    store = str(tmp_path / "log.db")
    made = run.invoke(app, ["keys", "new", "app", "--scope", "decide", "--scope", "read", "--store", store])
    assert made.exit_code == 0
    assert "ck_" in made.output
    with opened(tmp_path / "log.db") as found:
        assert [row.scopes for row in found.keys()] == [("decide", "read")]  # noqa: SIM118
    assert "app" in run.invoke(app, ["keys", "list", "--store", store]).output
    assert run.invoke(app, ["keys", "drop", "app", "--store", store]).exit_code == 0
    assert run.invoke(app, ["keys", "drop", "app", "--store", store]).exit_code == 2
    assert "= " in run.invoke(app, ["keys", "new", "app", "--toml"]).output


@pytest.mark.parametrize("ending", ["parquet", "dsjson"])
def test_a_log_is_checked_exported_and_imported(tmp_path: Path, ending: str) -> None:
    _lived(tmp_path / "log.db")
    checked = run.invoke(app, ["store", "check", "--store", str(tmp_path / "log.db")])
    assert "no damage" in checked.output
    assert "equals the snapshot and its tail: yes" in checked.output
    out = tmp_path / f"log.{ending}"
    assert "8 decisions" in run.invoke(
        app, ["store", "export", str(out), "--store", str(tmp_path / "log.db")]
    ).output.replace("17 records", "8 decisions")
    told = run.invoke(app, ["store", "import", str(out), "--store", str(tmp_path / "other.db")])
    assert "8 payoffs learned" in told.output, told.output


@pytest.mark.parametrize(
    "command",
    [
        ["store", "check"],
        ["store", "export", "out.parquet"],
        ["store", "cut", "--at", "0", "--yes"],
        ["keys", "list"],
        ["keys", "drop", "app"],
    ],
)
def test_commands_that_read_never_make_a_store(tmp_path: Path, command: list[str]) -> None:
    told = run.invoke(app, [*command, "--store", str(tmp_path / "typo.db")])
    assert told.exit_code != 0
    assert "there is no store at" in str(told.exception)
    assert list(tmp_path.iterdir()) == []


def test_a_repair_never_makes_a_store(tmp_path: Path) -> None:
    told = run.invoke(app, ["store", "repair", "--store", str(tmp_path / "typo.db"), "--yes"])
    assert "there is no store at" in str(told.exception)
    assert list(tmp_path.iterdir()) == []


def test_a_log_is_cut(tmp_path: Path) -> None:
    _lived(tmp_path / "log.db")
    told = run.invoke(app, ["store", "cut", "--at", "5", "--yes", "--store", str(tmp_path / "log.db")])
    assert "12 records given up" in told.output
    assert run.invoke(app, ["store", "repair", "--store", str(tmp_path / "log.db"), "--yes"]).exit_code == 0


def test_a_store_in_postgresql_needs_an_extra_which_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"needs psycopg: pip install 'coterie\[postgres\]'"):
        store.open_store("postgresql://nobody@localhost:1/none")


def test_a_load_test_is_bounded_and_stays_at_home() -> None:
    with pytest.raises(ParameterError, match="is not this machine"):
        check_plan("http://example.org", LoadPlan(), anywhere=False)
    with pytest.raises(ParameterError, match="at most 256"):
        check_plan(None, LoadPlan(connections=1000), anywhere=False)
    with pytest.raises(ParameterError, match="rewards is 2, expected a share"):
        check_plan(None, LoadPlan(rewards=2), anywhere=False)


@pytest.mark.parametrize("dialect", ["native", "personalizer"])
def test_a_load_test_sends_rewards_in_the_dialect_of_its_ranks(tmp_path: Path, dialect: Dialect) -> None:
    plan = LoadPlan(seconds=3600, connections=2, users=5, actions=3, rewards=1.0, dialect=dialect, ranks=4)
    with service("--store", str(tmp_path / "log.db"), "--policy", "random") as running:
        tally = asyncio.run(press(running.url, plan))
    assert not tally.failures
    assert len(tally.decided) == 8
    assert tally.rewarded == tally.decided


def test_the_modules_that_a_load_test_starts_exist() -> None:
    assert all(find_spec(module) for module, *_ in SERVERS.values())


def test_a_fresh_service_is_measured_on_linux_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_setaffinity")
    with pytest.raises(ParameterError, match="start one and give its --url"):
        ServerProcess(["coterie.cli", "serve"])


def test_settings_come_from_file_environment_and_flags(tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text('port = 1\nstore = "a.db"\n[config]\npolicy = "linucb"\nmax-users = 5\n')
    found = read_settings(file, {"COTERIE_PORT": "2", "COTERIE_DURABILITY": "lose-one-second"}, store="b.db")
    assert (found.port, found.store, found.durability) == (2, "b.db", Durability.LOSE_ONE_SECOND)
    assert found.config == Config(policy="linucb", max_users=5)
    given: dict[str, Any] = {
        "config.max_users": 7,
        "config.default_reward": 0.5,
        "config.parameters.alpha": 0.3,
    }
    found = read_settings(file, {}, None, **given)
    rules = Config(policy="linucb", parameters={"alpha": 0.3}, max_users=7, default_reward=0.5)
    assert found.config == rules
    assert found.names("config.default_reward")
    assert not found.names("config.wait")
    with pytest.raises(ParameterError, match="unknown field `weight`"):
        read_settings(file, {}, None, **{"config.weight": 1})
    with pytest.raises(ParameterError, match=r"host\.name is set, but host is 'here', not a table"):
        read_settings(file, {}, None, **{"host": "here", "host.name": 1})
    file.write_text("prot = 1")
    with pytest.raises(ParameterError, match="unknown field `prot`"):
        read_settings(file, {})
    with pytest.raises(ParameterError, match="cannot read the settings"):
        read_settings(tmp_path / "none.toml", {})


def test_rules_are_settings_of_the_command_too(tmp_path: Path) -> None:
    pairs = (
        "config.wait=5",
        "config.default-reward=0.25",
        'config.challenger={"policy": "random", "share": 0.1}',
    )
    options = [word for pair in pairs for word in ("--settings", pair)]
    with service("--store", str(tmp_path / "log.db"), "--policy", "random", *options) as running:
        told = httpx.get(f"{running.url}/v1/configuration").json()
    assert (told["wait"], told["defaultReward"], told["challenger"]["share"]) == (5, 0.25, 0.1)


def test_every_route_and_setting_is_documented() -> None:
    for route in [route for module in NATIVE if module is not page for route in module.ROUTES]:
        for path in route.paths:
            assert path.replace(":str", "") in DOCS, f"docs/service.md does not mention {path}"


def test_a_load_test_of_several_services_says_what_following_costs() -> None:
    done = run.invoke(
        app,
        [
            "loadtest",
            "--workers",
            "2",
            "--seconds",
            "2",
            "--warm",
            "1000",
            "--connections",
            "4",
            "--ids",
            "--actions",
            "3",
            "--json",
        ],
    )
    assert done.exit_code == 0, done.output
    (row,) = json.loads(done.stdout)
    assert (row["workers"], row["failures"]) == (2, 0)
    assert row["ranks_a_second"] > 0
    assert row["following_a_rank"] is not None
    done = run.invoke(app, ["loadtest", "--workers", "2,none"])
    assert str(done.exception) == "--workers is '2,none', expected numbers from 1 to 16, like 1,2,4"


def test_commands_multiply_matrices_in_one_thread() -> None:
    """The last bits of a product depend on the threads, and all who replay a log must agree."""
    code = "import coterie.cli, threadpoolctl, numpy; print(threadpoolctl.threadpool_info())"
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "2"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    found = [one["num_threads"] for one in ast.literal_eval(done.stdout) if one["internal_api"] == "openblas"]
    assert found
    assert set(found) <= {1}
