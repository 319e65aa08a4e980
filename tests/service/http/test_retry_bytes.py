"""A retry is known by the bytes of its body."""

from pathlib import Path

from tests.service.helpers import served


def test_the_same_bytes_are_a_retry_and_others_are_another_request(tmp_path: Path) -> None:
    body = b'{"eventId": "one", "actions": [{"id": "a"}, {"id": "b"}]}'
    headers = {"content-type": "application/json"}
    with served(tmp_path / "log.db") as (client, _):
        first = client.post("/v1/rank", content=body, headers=headers)
        assert first.status_code == 201
        again = client.post("/v1/rank", content=body, headers=headers)
        assert (again.status_code, again.json()) == (201, first.json())
        other = client.post("/v1/rank", content=body.replace(b"b", b"c"), headers=headers)
        assert (other.status_code, other.json()["error"]["code"]) == (409, "event_exists")
