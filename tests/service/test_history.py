"""The checker of histories, by hand."""

import pytest

from tests.service.history import Operation, Said, linearizable

ONE, OTHER = Said("first answer", "a"), Said("second answer", "b")
REFUSED, NONE = Said("409"), Said("404")


def rank(begin: float, end: float, said: Said | None, body: str = "ab") -> Operation:
    return Operation("rank", body, begin, end if said is not None else float("inf"), said)


def reward(begin: float, end: float, outcome: str) -> Operation:
    return Operation("reward", "", begin, end, Said(outcome))


def read(begin: float, end: float, said: str) -> Operation:
    return Operation("read", "", begin, end, Said(said))


@pytest.mark.parametrize(
    "operations",
    [
        [rank(0, 1, ONE), rank(2, 3, ONE), rank(2, 3, REFUSED, "ba")],
        [rank(0, 9, REFUSED), rank(1, 2, ONE, "ba")],  # the first to begin came second
        [rank(0, 1, None), rank(2, 3, ONE), rank(4, 5, ONE)],
        [rank(0, 1, None), rank(2, 3, ONE, "ba")],  # had no effect
        [rank(0, 1, None), rank(2, 3, REFUSED, "ba")],  # or it had
        [read(0, 3, "404"), rank(1, 2, ONE), read(1, 4, "a"), read(5, 6, "a")],
        [rank(0, 1, ONE), reward(2, 5, "duplicate"), reward(3, 4, "applied"), reward(6, 7, "late")],
        [reward(0, 1, "unknown_event"), rank(0, 2, ONE), reward(3, 4, "late"), reward(5, 6, "late")],
    ],
)
def test_what_could_have_happened_in_one_order_is_linearizable(operations: list[Operation]) -> None:
    assert linearizable(operations)


@pytest.mark.parametrize(
    "operations",
    [
        [rank(0, 1, ONE), rank(0, 1, OTHER)],  # two answers
        [rank(0, 1, ONE), rank(2, 3, OTHER, "ba")],  # another body was decided, too
        [rank(0, 1, REFUSED), rank(2, 3, ONE, "ba")],  # refused before anything was decided
        [rank(0, 1, ONE), rank(2, 3, REFUSED)],
        [rank(0, 1, ONE), read(2, 3, "404")],  # not seen, though it was acknowledged
        [rank(0, 1, ONE), read(2, 3, "b")],
        [rank(0, 9, ONE), read(1, 2, "a"), read(3, 4, "404")],  # seen, and then gone
        [rank(0, 1, ONE), reward(2, 3, "unknown_event")],
        [rank(0, 1, ONE), reward(2, 3, "applied"), reward(2, 3, "applied")],
        [rank(0, 1, ONE), reward(2, 3, "duplicate"), reward(4, 5, "applied")],
        [rank(0, 1, ONE), reward(2, 3, "late"), reward(4, 5, "applied")],
    ],
)
def test_what_could_not_is_not(operations: list[Operation]) -> None:
    assert not linearizable(operations)
