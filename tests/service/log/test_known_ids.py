"""A filter of event ids denies none that is there, and lets few others through."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from coterie.data.logs.records import event_key
from coterie.service.coordination.coordinator import Coordinator
from coterie.service.log import known_ids
from coterie.service.log import store as store_module
from coterie.service.log.known_ids import KnownIds
from tests.service.helpers import ask, settings_of, with_coordinator


def test_no_id_is_denied_and_few_others_are_let_through() -> None:
    """Also when it has grown three times: the filters together let through less than one in 50."""
    made = KnownIds()
    assert event_key("anything") in made  # nothing is certain before it is complete
    made.complete = True
    assert event_key("anything") not in made
    count = 3 * known_ids.FIRST // known_ids.BITS // 4
    made._filters._bits, made._filters._room = [bytearray(1 << 13)], (1 << 16) // known_ids.BITS
    for k in range(count // 16):
        made.add(event_key(f"event-{k}"))
    assert len(made._filters._bits) == 3
    assert all(event_key(f"event-{k}") in made for k in range(count // 16))
    assert sum(event_key(f"other-{k}") in made for k in range(10_000)) < 200


def test_ids_that_come_while_all_are_read_anew_are_known_and_those_that_are_gone_are_not() -> None:
    made = KnownIds()
    keys = [event_key(f"event-{k}") for k in range(40)]
    for key in keys[:20]:
        made.add(key)
    made._last.clear()  # long ago

    def index() -> Iterator[bytes]:
        yield from keys[10:20]
        made.add(keys[20])
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(made.add, keys[21:]))

    made.add(keys[9])  # on its way to the index
    made.read(index())
    assert [key in made for key in keys] == [k >= 9 for k in range(40)]
    assert made.count == 31


def test_an_index_that_cannot_be_read_leaves_what_was_known() -> None:
    made = KnownIds()
    made.add(event_key("one"))

    def broken() -> Iterator[bytes]:
        yield event_key("two")
        raise OSError("unreadable")

    with pytest.raises(OSError, match="unreadable"):
        made.read(broken())
    assert not made.complete
    assert made.count == 1


def test_a_service_knows_no_more_ids_than_its_log_has_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "SPARE_IDS", 5)
    monkeypatch.setattr(known_ids, "ON_THEIR_WAY", 2)

    async def live(coordinator: Coordinator) -> None:
        store = coordinator.store
        store.read_ids()
        for k in range(30):
            await coordinator.rank(ask(f"event-{k}"))
        store.read_ids()
        assert store._known_ids.count == 30
        await coordinator.delete_log()
        await coordinator.rank(ask("last"))
        store.read_ids()
        assert store._known_ids.count <= 3
        assert store.may_have("last")
        assert not store.may_have("event-3")

    with_coordinator(settings_of(tmp_path / "log.db"), live)
