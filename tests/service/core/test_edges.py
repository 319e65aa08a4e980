"""Friends of users: records that name them by number, and what becomes of them."""

import random

import pytest

from coterie.data.logs.records import Befriend, decode
from coterie.data.logs.rules import Challenger
from coterie.service.core.bandit import Bandit
from coterie.service.core.edges import MOST
from coterie.service.files.model_file import export_model, import_model
from coterie.service.problems import Problem
from coterie.service.snapshots import snapshot
from tests.service.core.test_one_model import replayed
from tests.service.helpers import START, ask, bandit, decide


def live(made: Bandit, n: int = 150, start: int = 0) -> None:
    """Play with ids alone; friends of a user like what the user likes."""
    rng = random.Random(start)
    for k in range(start, start + n):
        at = START + 1000 * k
        user = rng.randrange(8)
        record = decide(made, ask(f"event-{k}", f"user-{user}"), at)
        if k % 11 == 3:
            other = rng.randrange(8)
            made.befriend(
                f"user-{user}", {f"user-{other}": 1.0 + k % 3, f"new-{k}": 1.0} if other != user else {}, at
            )
        if k % 40 == 39:
            made.forget(f"user-{other}", at)
        made.reward(f"event-{k}", float(record.actions[record.choice] == "abc"[user % 3]), at)


def test_a_replay_and_a_snapshot_have_the_same_friends_to_the_bit() -> None:
    made = bandit(exploration=0.2, max_users=12)
    live(made)
    model = made.policies.made["model"]
    assert model is not None
    assert any(made.friends_of(f"user-{k}") for k in range(8))
    assert snapshot.dump(replayed(made)) == snapshot.dump(made)
    restored = snapshot.restore(snapshot.dump(made))
    restored.user_names.take(made.ids)
    live(made, 40, 200)
    live(restored, 40, 200)
    assert snapshot.dump(restored) == snapshot.dump(made)


def test_records_have_numbers_and_new_users_get_the_next_ones() -> None:
    made = bandit()
    made.befriend("ann", {"bob": 1.0, "carl": 2.0}, START)
    made.befriend("dora", {"bob": 0.5, "emil": 1.0}, START + 1)
    records = [decode(data) for data in made.outbox]
    assert [record for record in records if isinstance(record, Befriend)] == [
        Befriend(START, 0, (1, 2), (1.0, 2.0)),
        Befriend(START + 1, 3, (1, 4), (0.5, 1.0)),
    ]
    assert made.names == {"ann": 0, "bob": 1, "carl": 2, "dora": 3, "emil": 4}
    assert made.friends_of("bob") == {"ann": 1.0, "dora": 0.5}
    made.befriend("ann", {"carl": 3.0}, START + 2)
    assert made.friends_of("bob") == {"dora": 0.5}
    assert made.friends_of("carl") == {"ann": 3.0}
    assert made.friends_of("nobody") == {}


def test_with_a_user_go_the_edges() -> None:
    made = bandit()
    made.befriend("ann", {"bob": 1.0, "carl": 1.0}, START)
    made.forget("bob", START)
    assert made.friends_of("ann") == {"carl": 1.0}
    assert made.friends_of("bob") == {}
    made.befriend("bob", {"ann": 1.0}, START)  # back, with another number
    assert made.names["bob"] == 3
    assert made.friends_of("ann") == {"carl": 1.0, "bob": 1.0}


def test_users_who_make_room_take_their_edges_with_them_and_never_the_user_who_is_named() -> None:
    made = bandit(max_users=4)
    made.befriend("ann", {"bob": 1.0}, START)
    made.befriend("carl", {"dora": 1.0}, START)
    made.befriend("ann", {"bob": 1.0, "emil": 1.0, "fay": 1.0}, START)  # bob and carl were seen first, and go
    assert made.friends_of("ann") == {"emil": 1.0, "fay": 1.0}
    assert made.names.keys() == {"ann", "dora", "emil", "fay"}
    assert made.friends_of("dora") == {}


def test_what_friends_like_is_shown_to_a_new_user() -> None:
    def learned(with_friends: bool) -> float:
        made, right = bandit(exploration=0.0), 0
        for k in range(24):
            if with_friends:
                made.befriend(f"user-{k}", {f"user-{k % 2 + 2 * j}": 1.0 for j in range(k // 2)}, START)
            for j in range(12):
                record = decide(made, ask(f"event-{k}-{j}", f"user-{k}", "ab"))
                good = record.actions[record.choice] == "ab"[k % 2]
                made.reward(f"event-{k}-{j}", float(good), START)
                right += good and j < 3
        return right / 72

    assert learned(True) > learned(False) + 0.1


def test_friends_are_in_the_file_of_a_model() -> None:
    made, other = bandit(), bandit()
    live(made, 60)
    other.rank(ask("first", "somebody"), START)
    import_model(export_model(made), other, START)
    found = {name: other.friends_of(name) for name in made.names}
    assert found == {name: made.friends_of(name) for name in made.names}
    assert any(found.values())


def test_what_cannot_be_is_refused_and_named() -> None:
    made = bandit()
    before = made.position
    for friends, said in (
        ({"ann": 1.0}, "user 'ann' is in the list of the own friends"),
        ({"(shared)": 1.0}, "visitors who are not known"),
        ({str(k): 1.0 for k in range(MOST + 1)}, "1001 friends, expected at most 1000"),
    ):
        with pytest.raises(Problem, match=said):
            made.befriend("ann", friends, START)
    with pytest.raises(Problem, match="the policy 'cab' does not use friends"):
        bandit(policy="cab").befriend("ann", {"bob": 1.0}, START)
    with pytest.raises(Problem, match="3 friends, but at most 3 users are kept"):
        bandit(max_users=3).befriend("ann", {"b": 1.0, "c": 1.0, "d": 1.0}, START)
    assert made.position == before
    made.befriend("ann", {str(k): 1.0 for k in range(MOST)}, START)
    with pytest.raises(Problem, match="user 'ann' has 1000 friends already"):
        made.befriend("bob", {"ann": 1.0}, START)
    made.befriend("7", {"ann": 2.0}, START)  # is one of them


def test_a_challenger_that_uses_friends_is_told_of_them() -> None:
    made = bandit(policy="linucb", challenger=Challenger(policy="hierarchical", share=0.5))
    made.befriend("ann", {"bob": 1.0}, START)
    assert made.friends_of("bob") == {"ann": 1.0}
    assert snapshot.dump(replayed(made)) == snapshot.dump(made)
