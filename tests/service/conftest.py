"""What the service's tests share: draws that are the same in every run."""

import pytest

from coterie.service.core import bandit


@pytest.fixture(autouse=True)
def known_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw without a secret in this process, so that a test chooses the same actions in every run."""
    monkeypatch.setattr(bandit, "new_secret", lambda: b"")
