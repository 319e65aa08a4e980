"""Bodies whose actions came before are read as if they had not: the same values, digests, records and errors."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.service.core.encoding import KnownFeatures, encode_question
from coterie.service.core.question import Question, pack_features
from coterie.service.http import known_actions as module
from coterie.service.http.bodies import PricedAction, checked
from coterie.service.http.known_actions import ShortWay, short_way
from coterie.service.http.routes.decisions import RankBody, RewardBody
from coterie.service.personalizer.bodies import RankIn, SlotsIn
from coterie.service.problems import Problem
from coterie.service.settings import Settings

ACTIONS: list[Any] = [
    {"id": "a", "features": [{"tone": "calm", "price": 1.5, "size": {"pages": 3, "tags": ["x", "y"]}}]},
    {"id": "b", "features": [{"b": 1, "a": 2}, {"new": True, "gone": None}]},
    {"id": "c", "features": []},
    {"id": "d"},
    {"id": "e", "features": None},
]
BODY = {"user": "ann", "eventId": "e1", "context": [{"device": "phone"}], "actions": ACTIONS}


def fresh(kind: type[Any] = RankBody) -> ShortWay[Any]:
    """Return what knows no action yet."""
    made = short_way(kind)
    assert made is not None
    return made


def text(body: Any) -> bytes:
    return body if isinstance(body, bytes) else json.dumps(body).encode()


def test_actions_are_known_from_the_third_time_on_and_read_as_before() -> None:
    known, body = fresh(), text(BODY)
    assert known.decode(body) is None
    assert known.decode(body) is None
    found: Any = known.decode(body)
    assert found == msgspec.json.decode(body, type=RankBody)
    assert type(found) is RankBody
    assert [type(one.features) for one in found.actions[:3]] == [KnownFeatures] * 3
    assert type(found.context) is KnownFeatures
    assert known.decode(body).context is found.context  # type: ignore[union-attr]
    again: Any = known.decode(text({**BODY, "user": "bob", "context": [], "actions": ACTIONS[::-1]}))
    assert [one.id for one in again.actions] == [*"edcba"]
    assert again.actions[-1] is found.actions[0]  # read once


def test_digest_record_and_what_a_policy_reads_are_the_same() -> None:
    known, body, settings = fresh(), text(BODY), Settings()
    while (found := known.decode(body)) is None:
        pass
    plain = msgspec.json.decode(body, type=RankBody)
    one, other = (
        checked(Question("e1", "ann", data.actions, data.context), settings) for data in (found, plain)
    )
    assert one == other
    assert one.digest() == other.digest()
    assert pack_features(one) == pack_features(other)
    for _ in range(2):  # what is hashed the first time is used the second time
        read = [
            encode_question([action.id for action in q.actions], [a.features for a in q.actions], q.context)
            for q in (one, other)
        ]
        assert [read[0][k].to_bytes() for k in range(5)] == [read[1][k].to_bytes() for k in range(5)]


WRONG: list[Any] = [
    b'{"user": "ann", "user": "bob", "actions": [{"id": "a"}]}',  # a name twice, outside of the actions
    b'{"user": "ann", "actions": [{"id": "a", "id": "b"}]}',
    b'{"user": "ann", "actions": [{"id": "a", "features": [{"x": 1, "x": 2}]}]}',
    {"user": "ann", "actions": [{"id": "a", "surprise": 1}]},
    {"user": "ann", "actions": [{"id": "a"}], "surprise": 1},
    {"user": "ann", "actions": []},
    {"user": "ann", "actions": [{"id": "a"}], "context": [{"x": 10**400}]},
    {"user": "ann", "actions": [{"id": "a"}], "context": {"x": 1}},
    {"user": "ann", "actions": [{"id": "a"}], "context": 3},
    b'{"user": "ann", "actions": [{"id": "a"}], "context": [{"x": 1, "x": 2}]}',
    {"user": "ann", "actions": [{"id": "a", "features": [{"x": 10**400}]}]},
    {"user": "ann", "actions": [{"id": "a", "features": {"x": 1}}]},
    {"user": "ann", "actions": [{"id": "", "features": []}]},
    {"user": "\n", "actions": [{"id": "a"}]},
    b'{"user": "ann", "actions": [{"id": "\xff"}]}',
    b'{"user": "ann", "actions": [{"id": "a"}]',
    b"[]",
    b"",
]


@pytest.mark.parametrize("body", WRONG, ids=range(len(WRONG)))
def test_what_is_wrong_is_never_known(body: Any) -> None:
    known = fresh()
    for _ in range(4):
        assert known.decode(text(body)) is None
    assert known.decode(text({"user": "ann", "actions": [{"id": "a"}]})) in (
        None,
        RankBody([PricedAction("a")], "ann"),
    )


def test_features_that_nest_too_deep_are_refused_every_time() -> None:
    deep: Any = 1
    for _ in range(20):
        deep = {"x": deep}
    body, known, settings = (
        text({"user": "ann", "actions": [{"id": "a", "features": [deep]}]}),
        fresh(),
        Settings(),
    )
    for _ in range(4):
        assert known.decode(body) is None
    data = msgspec.json.decode(body, type=RankBody)
    with pytest.raises(Problem, match="nest deeper than 16 levels"):
        checked(Question("e", "ann", data.actions), settings)


def test_limits_count_known_and_unknown_features() -> None:
    known, settings = fresh(), Settings(max_features=12)
    body = text({"user": "ann", "actions": ACTIONS})
    while (found := known.decode(body)) is None:
        pass
    mine = [*found.actions, PricedAction("new", [{"x": 1, "y": 2}])]
    question = checked(Question("e", "ann", mine, [{"z": 1}]), settings)
    assert question.work == (2 + 1) * (6 + 11)
    with pytest.raises(Problem, match="more than 12 features"):
        checked(Question("e", "ann", mine, [{"z": 1, "w": 2}]), settings)


def test_only_bodies_with_actions_have_a_short_way() -> None:
    assert short_way(RewardBody) is None
    for kind in (RankBody, RankIn, SlotsIn):
        assert short_way(kind) is not None


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ROOM", 1000)
    monkeypatch.setattr(module, "SEEN", 50)
    known = fresh()
    for k in range(300):
        body = text({"user": "ann", "actions": [{"id": f"item-{k}", "features": [{"x": k}]}]})
        for _ in range(3):
            known.decode(body)
        assert sum(map(len, known._known)) <= 1000
        assert len(known._seen) <= 50
    large = text({"user": "ann", "actions": [{"id": "a", "features": [{"x": "y" * 5000}]}]})
    for _ in range(4):
        assert known.decode(large) is None


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip
features = st.none() | st.lists(st.dictionaries(st.text(max_size=4), values, max_size=3), max_size=2)


@given(st.lists(st.tuples(st.text(min_size=1, max_size=5), features), min_size=1, max_size=4), st.booleans())
def test_any_body_is_read_as_the_strict_decoder_reads_it(actions: list[Any], escaped: bool) -> None:
    body = {"user": "ann", "actions": [{"id": name, "features": what} for name, what in actions]}
    sent = json.dumps(body, ensure_ascii=escaped).encode("utf-8", "surrogatepass")
    known = fresh()
    for _ in range(3):
        found = known.decode(sent)
    if found is not None:
        plain = msgspec.json.decode(sent, type=RankBody)
        assert found == plain
        one, other = ([a.features for a in data.actions] for data in (found, plain))
        assert msgspec.json.encode(one) == msgspec.json.encode(other)
