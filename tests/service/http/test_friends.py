"""The routes of friends."""

from pathlib import Path

from coterie.data.logs.rules import Config
from coterie.service.snapshots import snapshot
from coterie.service.snapshots.recovery import recover
from tests.service.helpers import opened, served


def test_friends_are_given_shown_and_gone_with_the_user(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    with served(path) as (client, coordinator):
        assert client.get("/v1/users/ann/friends").json()["error"]["code"] == "unknown_user"
        told = client.put("/v1/users/ann/friends", json={"friends": ["bob", "a/b"]})
        assert told.status_code == 200
        assert told.json() == {"id": "ann", "friends": {"bob": 1.0, "a/b": 1.0}}
        assert client.get("/v1/users/a%2Fb/friends").json() == {"id": "a/b", "friends": {"ann": 1.0}}
        client.put("/v1/users/ann/friends", json={"friends": {"bob": 2.5}})
        assert client.get("/v1/users/ann/friends").json()["friends"] == {"bob": 2.5}
        assert client.delete("/v1/users/bob").status_code == 204
        assert client.get("/v1/users/ann/friends").json()["friends"] == {}
        client.put("/v1/users/ann/friends", json={"friends": {"carl": 1}})
        assert client.put("/v1/users/ann/friends", json={"friends": []}).json()["friends"] == {}
        client.put("/v1/users/ann/friends", json={"friends": {"carl": 3}})
        live = snapshot.dump(coordinator.bandit)
    with opened(path) as store:
        assert snapshot.dump(recover(store, from_empty=True)) == live
        assert snapshot.dump(recover(store)) == live
        assert b"bob" not in path.read_bytes()


def test_what_is_wrong_is_named(tmp_path: Path) -> None:
    with served(tmp_path / "log.db") as (client, coordinator):
        before = coordinator.bandit.position
        for friends, status, said in (
            (["ann"], 422, "user 'ann' is in the list of the own friends"),
            (["bob", "."], 400, "not an id"),
            ({"bob": 0}, 400, "1e-06"),
            ({"bob": 1e7}, 400, "1000000"),
            ("bob", 400, "Expected `object | array`"),
        ):
            answer = client.put("/v1/users/ann/friends", json={"friends": friends})
            assert (answer.status_code, said in answer.json()["error"]["message"]) == (status, True), (
                answer.text
            )
        assert coordinator.bandit.position == before
    with served(tmp_path / "other.db", Config(policy="cab")) as (client, _):
        answer = client.put("/v1/users/ann/friends", json={"friends": ["bob"]})
        assert answer.status_code == 422
        assert answer.json()["error"]["code"] == "no_friends"
