"""A filter of event ids denies none that is there, and lets few others through."""

from coterie.service.core.records import event_key
from coterie.service.log import known_ids
from coterie.service.log.known_ids import KnownIds


def test_no_id_is_denied_and_few_others_are_let_through() -> None:
    """Also when it has grown three times: the filters together let through less than one in 50."""
    made = KnownIds()
    assert event_key("anything") in made  # nothing is certain before it is complete
    made.complete = True
    assert event_key("anything") not in made
    count = 3 * known_ids.FIRST // known_ids.BITS // 4
    made._filters, made._room = [bytearray(1 << 13)], (1 << 16) // known_ids.BITS
    for k in range(count // 16):
        made.add(event_key(f"event-{k}"))
    assert len(made._filters) == 3
    assert all(event_key(f"event-{k}") in made for k in range(count // 16))
    assert sum(event_key(f"other-{k}") in made for k in range(10_000)) < 200
