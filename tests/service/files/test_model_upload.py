"""A model may be larger than the body of any other request: it has a limit of its own."""

from pathlib import Path

from litestar.testing import TestClient

from coterie.service.log.sqlite_store import SqliteStore
from coterie.service.serve import make_app
from coterie.service.settings import Settings

MODEL = "/personalizer/v1.0/model"


def test_ones_own_exported_model_is_accepted_and_a_larger_file_is_not(tmp_path: Path) -> None:
    path = str(tmp_path / "log.db")
    settings = Settings(store=path, max_body=1_000, max_model=400_000)
    with TestClient(make_app(settings, SqliteStore(path)), base_url="http://127.0.0.1") as client:
        actions = [{"id": "a"}, {"id": "b"}]
        client.post("/v1/rank", json={"user": "ann", "actions": actions, "eventId": "e"})
        client.post("/v1/events/e/reward", json={"value": 1})
        model = client.get(MODEL).content
        assert settings.max_body < len(model) <= settings.max_model
        sent = {"content-type": "application/octet-stream"}
        assert client.put(MODEL, content=model, headers=sent).status_code == 204
        assert client.get(MODEL).content == model
        for content in (bytes(400_001), iter([bytes(210_000)] * 2)):  # also without a length
            refused = client.put(MODEL, content=content, headers=sent)
            assert refused.status_code == 413
            assert "more than 400000 bytes (max-model)" in refused.text
        other = client.post("/v1/rank", json={"user": "x" * 2_000, "actions": actions})
        assert (other.status_code, "1000 bytes (max-body)" in other.text) == (413, True)
