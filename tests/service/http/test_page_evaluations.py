"""The page's view of evaluations in a real Chromium: list, estimates with intervals, hostile names, a phone."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from coterie.service.evaluations.jobs import EvaluatedPolicy, Job, encode
from coterie.service.log.sqlite_store import SqliteStore
from tests.service.helpers import START
from tests.service.http.test_page import CHROMIUM, CONTRAST, IMAGE, SCRIPT, Watched, browser, quoted
from tests.service.process import Process, service

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium (apt install chromium)")
__all__ = ["browser"]  # the fixture
HOSTILE = f"{IMAGE}{SCRIPT}{'x' * 150}"


def estimate(value: float) -> dict[str, float]:
    return {"value": value, "low": value - 0.1, "high": value + 0.2}


def result() -> dict[str, Any]:
    policies = [
        {
            "policy": name,
            **{method: estimate(value) for method in ("ips", "snips", "dm", "dr")},
            "effective_sample_size": 40.4,
        }
        for name, value in ((HOSTILE, 0.6), ("logged", 0.4), ("uniform", 0.2))
    ]
    return {
        "records": 1234,
        "level": 0.95,
        "verdict": f"{HOSTILE} would have earned most",
        "words": "In words.",
        "policies": policies,
        "notes": [f"A note on {IMAGE}"],
    }


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    path = tmp_path_factory.mktemp("page") / "log.db"
    store = SqliteStore(str(path))
    policies = (EvaluatedPolicy(HOSTILE, "linucb"),)
    made = Job(
        "a/b",
        "evaluation",
        HOSTILE,
        0,
        START,
        START,
        policies,
        status="done",
        result=result(),
        applied=HOSTILE,
    )
    failed = Job(
        "two", "evaluation", "two", 0, START, START + 1, status="failed", error="the log is too short"
    )
    for job in (made, failed):
        store.save_evaluation(f"evaluation {job.id}", encode(job))
    store.close()
    with service("--store", str(path)) as process:
        yield process


@pytest.fixture(
    params=[{}, {"viewport": {"width": 360, "height": 740}, "color_scheme": "dark"}],
    ids=["coordinator", "phone"],
)
def watched(browser: Any, server: Process, request: pytest.FixtureRequest) -> Iterator[Watched]:
    made = Watched(browser, server.url, **request.param)
    yield made
    made.context.close()
    assert made.complaints == []


def test_evaluations_are_listed_and_shown_with_their_intervals(watched: Watched) -> None:
    page = watched.go("#/evaluations")
    assert page.get_by_role("link", name="Evaluations").get_attribute("aria-current") == "page"
    assert page.locator("tbody tr").count() == 2
    assert page.get_by_text("failed").is_visible()
    for route in ("#/evaluations", f"#/evaluation/{quoted('a/b')}", "#/evaluation/two"):
        page = watched.go(route)
        assert (
            page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") <= 0
        )
        assert page.evaluate(CONTRAST) == [], route
    page = watched.go(f"#/evaluation/{quoted('a/b')}")
    assert page.locator("h1").inner_text() == HOSTILE
    figure = page.get_by_role("img", name="What each policy would have earned")
    assert "what was shown 0.400, 0.300 to 0.600" in (figure.get_attribute("aria-label") or "")
    assert figure.locator("circle").count() == 3
    assert page.locator("tbody tr").count() == 3
    assert page.locator("tr.chosen").count() == 1
    page = watched.go("#/evaluation/two")
    assert page.get_by_text("the log is too short").is_visible()


def test_a_store_keeps_them_whole(tmp_path: Path) -> None:
    store = SqliteStore(str(tmp_path / "log.db"))
    try:
        assert store.evaluations() == []
        store.save_evaluation("a", b"one")
        store.save_evaluation("a", b"two")
        store.save_evaluation("b", b"three")
        store.drop_evaluation("b")
        assert store.evaluations() == [b"two"]
        store._write.execute("UPDATE evaluations SET body = x'00'")
        assert store.evaluations() == []  # damaged
    finally:
        store.close()
