"""Numbers of any size in requests, logs, snapshots and model files: nothing that is accepted may kill."""

import logging
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from safetensors.numpy import load, save

from coterie.data.logs.records import Import, Rank, decode, encode
from coterie.data.logs.rules import Config
from coterie.errors import FileError, ParameterError
from coterie.models.encoded import Encoded
from coterie.policies import POLICIES
from coterie.service.coordination.coordinator import Coordinator
from coterie.service.core.bandit import Bandit
from coterie.service.core.question import Action, Question
from coterie.service.files import model_file
from coterie.service.files.model_file import export_model, import_model
from coterie.service.snapshots import snapshot
from coterie.service.snapshots.checking import check
from coterie.service.snapshots.recovery import recover
from coterie.service.snapshots.saving import save_now
from tests.service.helpers import START, ask, bandit, decide, opened, served, settings_of, with_coordinator

EXTREME = [5e-324, 1e-310, 1e-161, 1e-160, 1e-155, 1e-80, -1e-78, 1e-20, 1e300, 1.7e308, -0.0]


def featured(event: str, action: Any, context: Any = 1.0, user: str = "ann") -> Question:
    shown = [Action(name, [{"size": action}]) for name in "ab"]
    return Question(event, user, shown, [{"hour": context}])


def replayed(made: Bandit) -> Bandit:
    again = Bandit()
    for data in made.outbox:
        again.apply(decode(data))
    return again


@pytest.mark.parametrize("value", EXTREME)
@pytest.mark.parametrize("context", [1.0, 1e-160, 1e-78, 1e-80, 1e308])
def test_one_extreme_value_does_not_end_the_service(value: float, context: float) -> None:
    made = bandit()
    decide(made, featured("first", value, context))
    assert made.reward("first", 1.0, START) == "applied"
    for k, user in enumerate(("ann", "bob")):
        assert 0 < decide(made, ask(f"plain-{k}", user)).probability <= 1
        assert 0 < decide(made, featured(f"same-{k}", value, context, user)).probability <= 1
        assert made.reward(f"same-{k}", -1.0, START) == "applied"
    assert made.skipped == 0
    assert snapshot.dump(replayed(made)) == snapshot.dump(made)
    assert snapshot.dump(snapshot.restore(snapshot.dump(made))) == snapshot.dump(made)


def of_an_earlier_version(made: Bandit, value: float) -> list[Any]:
    """Return a decision with a value that is not read today, and its reward."""
    record = made.decide(featured("old", 1.0), START)
    assert record.hashed is not None
    hashed = Encoded.from_bytes(record.hashed).hashed
    values = np.where(hashed.values == np.log1p(1.0), value, hashed.values)
    old = Encoded(hashed._replace(values=values)).to_bytes()
    return [msgspec.structs.replace(record, hashed=old)]


@pytest.mark.parametrize("value", [1e160, np.nan, 1e300])
def test_a_log_with_such_a_record_is_read_without_it_by_name(
    value: float, caplog: pytest.LogCaptureFixture
) -> None:
    made = bandit()
    for record in of_an_earlier_version(made, value):
        made.keep(featured("old", 1.0), record, START)
    before = made.policies.learned
    with caplog.at_level(logging.ERROR, "coterie.service"):
        made.reward("old", 1.0, START)
    assert (made.policies.learned, made.skipped) == (before, 1)
    assert "event 'old' was not learned" in caplog.text
    assert "log record" in caplog.text
    assert decide(made, featured("next", 2.0)).probability > 0
    again = replayed(made)
    assert again.skipped == 1
    assert snapshot.dump(again) == snapshot.dump(made)


def test_a_start_skips_the_record_and_a_snapshot_that_is_not_finite(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The model of an earlier version became NaN, and its snapshot holds it: the log is read from its beginning."""
    settings = settings_of(tmp_path / "log.db")

    async def live(coordinator: Coordinator) -> None:
        await coordinator.rank(ask("good"))
        await coordinator.reward("good", 1.0)
        made = coordinator.bandit
        (record,) = of_an_earlier_version(made, 1e160)
        await coordinator._write(lambda: made.keep(featured("old", 1.0), record, START))
        await coordinator.reward("old", 1.0)
        model: Any = made.policies.made["model"]
        model._model.effects.figures[:] = np.nan

    with_coordinator(settings, live)  # its stop writes the snapshot

    async def again(coordinator: Coordinator) -> None:
        assert (await coordinator.rank(ask("new"))).probability > 0
        assert coordinator.bandit.skipped == 1

    with caplog.at_level(logging.ERROR, "coterie.service"):
        with_coordinator(settings, again)
    assert "is not used: the model of the snapshot cannot be used: tensor 'figures'" in caplog.text
    assert "the payoff of event 'old' was not learned" in caplog.text
    with opened(tmp_path / "log.db") as store:
        assert check(store).same is True
        model: Any = recover(store).policies.made["model"]
        assert np.isfinite(model._model.effects.figures).all()


def test_a_reward_that_cannot_be_learned_says_so_and_changes_only_the_event(tmp_path: Path) -> None:
    with served(tmp_path / "log.db") as (client, coordinator):
        body = {"user": "ann", "actions": [{"id": "a"}, {"id": "b"}]}
        client.post("/v1/rank", json=body | {"eventId": "one"})
        client.post("/v1/events/one/reward", json={"value": 1.0})
        client.post("/v1/rank", json=body | {"eventId": "two"})
        model: Any = coordinator.bandit.policies.made["model"]
        model._model.plain.population.model.prior.means[:] = 1e61  # so that an estimate is far out of range
        answer = client.post("/v1/events/two/reward", json={"value": 1.0})
        assert (answer.status_code, answer.json()["outcome"]) == (200, "not_learned")
        assert "coterie_payoffs_skipped 1.0" in client.get("/metrics").text
        assert 'coterie_rewards_total{outcome="not_learned"} 1.0' in client.get("/metrics").text
        assert client.post("/v1/events/two/reward", json={"value": 1.0}).json()["outcome"] == "duplicate"


def hostile(content: bytes, name: str, value: float) -> bytes:
    """Return a model file with one array replaced, and the checksum of it."""
    size = int.from_bytes(content[:8], "little")
    header = msgspec.json.decode(content[8 : 8 + size])["__metadata__"]
    about = msgspec.json.decode(header["coterie-model"], type=model_file.Header)
    tensors = load(content)
    tensors[name] = np.full_like(tensors[name], value)
    about = msgspec.structs.replace(about, checksum=model_file._checksum(about, tensors))
    return save(tensors, {"coterie-model": msgspec.json.encode(about).decode()})


@pytest.mark.parametrize("value", [1e308, -1e308, 1e101, 1e61, np.nan, np.inf])
@pytest.mark.parametrize("name", ["model.precision", "model.pull", "model.figures", "model.noise"])
def test_a_model_file_out_of_range_is_refused_and_changes_nothing(name: str, value: float) -> None:
    made = bandit()
    decide(made, featured("one", 1.0))
    made.reward("one", 1.0, START)
    before, position = snapshot.dump(made), made.position
    with pytest.raises(FileError, match=r"holds|contradict each other"):
        import_model(hostile(export_model(made), name, value), made, START)
    assert (snapshot.dump(made), made.position) == (before, position)


def test_after_a_model_file_with_a_tiny_number_everybody_is_served() -> None:
    """A division by such a number is not finite, so it counts as 0, which is refused where one divides."""
    made = bandit()
    for k in range(12):
        decide(made, featured(f"e{k}", 1.0 + k, 1.0 / (1 + k)))
        made.reward(f"e{k}", float(k % 3 == 0), START)
    content = export_model(made)
    names = [name for name, tensor in load(content).items() if tensor.dtype.kind == "f" and tensor.size]
    assert "model.block_fitted" in names
    done = 0
    for name in names:
        with suppress(FileError), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import_model(hostile(content, name, 5e-324), made, START)
            done += 1
        for k in range(8):
            one = decide(made, featured(f"{name} {k}", 2.0, 3.0, f"user {k % 2}"))
            assert 0 < one.probability <= 1, name
            made.reward(one.event, 1.0, START)
        tensors = made.policies.made["model"].tensors()
        assert all(np.isfinite(tensor).all() for tensor in tensors.values() if tensor.dtype.kind == "f"), name
    assert done > 1


def test_an_import_in_the_log_that_cannot_be_used_is_skipped(caplog: pytest.LogCaptureFixture) -> None:
    made = bandit()
    decide(made, featured("one", 1.0))
    made.reward("one", 1.0, START)
    tensors = load(save(made.policies.made["model"].tensors()))
    tensors["precision"] = np.full_like(tensors["precision"], 1e308)
    learned = made.policies.learned
    with caplog.at_level(logging.ERROR, "coterie.service"):
        made.apply(Import(START, (), {"model": (7, save(tensors))}))
    assert (made.skipped, made.policies.learned) == (1, learned)
    assert "its model was not learned: tensor 'precision'" in caplog.text
    assert decide(made, ask("two")).probability > 0


def test_what_cannot_be_encoded_changes_nothing() -> None:
    made = bandit()
    before = snapshot.dump(made), made.position, len(made.outbox), dict(made.names)
    with pytest.raises(ParameterError, match=r"cannot be written to the log.*2\*\*64 - 1"):
        made.configure(Config(parameters={"seed": 2**64}), START)
    record = msgspec.structs.replace(made.decide(ask("one"), START), best=2**64)
    with pytest.raises(ParameterError, match="cannot be written to the log"):
        made.keep(ask("one"), record, START)
    with pytest.raises(ParameterError, match="cannot be written to the log"):
        made.keep_all([(ask("two"), made.decide(ask("two"), START)), (ask("one"), record)], START)
    assert (snapshot.dump(made), made.position, len(made.outbox), dict(made.names)) == before
    assert isinstance(decode(encode(made.decide(ask("one"), START))), Rank)


def test_a_snapshot_is_as_finite_as_the_state(tmp_path: Path) -> None:
    made = bandit()
    for k, value in enumerate(EXTREME):
        decide(made, featured(f"e{k}", value, value))
        made.reward(f"e{k}", 1.0, START)
    with opened(tmp_path / "log.db") as store:
        save_now(made, store)
        ((_, state),) = store.snapshots()
        assert snapshot.dump(snapshot.restore(state, None, store.piece)) == snapshot.dump(made)


@pytest.mark.parametrize(
    "error", [ValueError("math domain error"), KeyError("a fault"), IndexError("of ours")]
)
def test_whatever_a_policy_raises_skips_the_payoff(
    error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made = bandit(policy="linucb")
    decide(made, Question("e1", "ann", [Action("a"), Action("b")]))

    def learn(*_: object) -> int:
        raise error

    monkeypatch.setattr(POLICIES["linucb"], "learn", learn)
    made.reward("e1", 1.0, START + 1)
    assert made.skipped == 1
    assert f"was not learned: {error}" in caplog.text


def test_too_little_memory_in_one_process_skips_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process learns the payoff, so this one must end: its state would be another."""
    made = bandit(policy="linucb")
    decide(made, Question("e1", "ann", [Action("a"), Action("b")]))

    def learn(*_: object) -> int:
        raise MemoryError

    monkeypatch.setattr(POLICIES["linucb"], "learn", learn)
    with pytest.raises(MemoryError):
        made.reward("e1", 1.0, START + 1)
