"""The page's view of evaluations in a real Chromium: start, list, estimates, features, hostile names, a phone."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from coterie.service.evaluations.jobs import EvaluatedPolicy, Job, encode
from coterie.service.log.sqlite_store import SqliteStore
from tests.service.helpers import START
from tests.service.http.test_page import CHROMIUM, CONTRAST, IMAGE, KEY, SCRIPT, Watched, browser, quoted
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
        "features": [
            {"namespace": "action" if k else "context", "name": name, "score": 100.0 / (k + 1)}
            for k, name in enumerate([HOSTILE, "kind", *(f"other-{k}" for k in range(23))])
        ],
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
        page.evaluate("for (const more of document.querySelectorAll('details')) more.open = true")
        assert (
            page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") <= 0
        )
        assert page.evaluate(CONTRAST) == [], route
    page = watched.go(f"#/evaluation/{quoted('a/b')}")
    assert page.locator("h1").inner_text() == HOSTILE
    figure = page.get_by_role("img", name="What each policy would have earned")
    assert "what was shown 0.400, 0.300 to 0.600" in (figure.get_attribute("aria-label") or "")
    assert figure.locator("circle").count() == 3
    assert page.get_by_role("region", name="Estimates").locator("tbody tr").count() == 3
    assert page.locator("tr.chosen").count() == 1
    features = page.get_by_role("region", name="Features")
    assert features.locator("tbody tr").count() == 20
    assert HOSTILE in features.inner_text()
    assert "50.0" in features.locator("tbody tr").nth(1).inner_text()
    widths = [bar.bounding_box()["width"] for bar in features.locator(".bar").all()]
    assert widths == sorted(widths, reverse=True)
    assert page.get_by_text("and 5 more").is_visible()
    assert page.locator("main img, main script").count() == 0
    page = watched.go("#/evaluation/two")
    assert page.get_by_role("heading", name="It failed").is_visible()
    assert page.get_by_text("the log is too short").is_visible()


ADMIN = "admin-key-that-is-long-enough"


def fill(url: str, count: int) -> None:
    """Let a service decide and learn; "b" pays."""
    with httpx.Client(base_url=url, headers={"X-API-Key": ADMIN}) as client:
        for k in range(count):
            actions = [{"id": name, "features": [{"kind": name}]} for name in "ab"]
            body = {"user": f"u{k % 4}", "actions": actions, "context": [{"hour": k % 3}], "eventId": f"e{k}"}
            chosen = client.post("/v1/rank", json=body).json()["chosen"]
            client.post(f"/v1/events/e{k}/reward", json={"value": float(chosen == "b")})


def test_an_evaluation_is_started_followed_applied_and_deleted_on_the_page(
    browser: Any, tmp_path: Path
) -> None:
    environment = {"COTERIE_KEY_WATCH": f"read:{KEY}", "COTERIE_KEY_BOSS": f"decide+read+admin:{ADMIN}"}
    with service("--store", str(tmp_path / "log.db"), environment=environment) as process:
        fill(process.url, 40)
        made = Watched(browser, process.url, viewport={"width": 360, "height": 740})
        page = made.go("#/evaluations")

        def give(key: str) -> None:
            page.get_by_role("dialog", name="A key is needed").wait_for()
            page.get_by_label("Key", exact=True).fill(key)
            page.keyboard.press("Enter")

        def refused(words: str) -> None:
            page.get_by_role("button", name="Start").click()
            page.get_by_role("alert").filter(has_text=words).wait_for()

        give(KEY)
        page.get_by_text("There are none yet.").wait_for()
        page.get_by_text("Start an evaluation").click()
        page.get_by_label("Name").fill(HOSTILE)
        page.get_by_label("Also try a few").uncheck()
        page.get_by_label("Policies to compare").fill("linucb\nhierarchical:explore")
        refused('"explore" is not a parameter')
        page.get_by_label("Policies to compare").fill(" linucb \n\nHierarchical:explore=0.25")
        page.get_by_label("To (").fill("2020-01-01T00:00")
        page.get_by_label("From").fill("2020-01-02T00:00")
        refused('"To" is not after "From"')
        page.get_by_label("From").fill("")
        page.get_by_label("To (").fill("2100-01-01T00:00")
        page.get_by_role("button", name="Start").click()
        page.locator("#key-why", has_text="this key may read; the call needs admin").wait_for()
        give(ADMIN)
        page.get_by_role("dialog", name="A key is needed").wait_for(state="hidden")
        assert page.get_by_label("Name").input_value() == HOSTILE  # nothing typed is lost
        assert not page.get_by_label("Also try a few").is_checked()
        page.get_by_role("button", name="Start").click()
        page.get_by_role("heading", level=1, name=HOSTILE).wait_for()
        page.get_by_role("heading", name="Verdict").wait_for()  # by itself, when it is done
        assert page.get_by_text("The evaluation is done.").is_visible()
        assert "kind" in page.get_by_role("region", name="Features").inner_text()
        (sent,) = _asked(process.url, "/v1/evaluations")["evaluations"]
        assert (sent["id"], sent["start"], sent["end"] > 4e12) == (HOSTILE, 0, True)
        assert sent["policies"][1:] == [
            {"name": "linucb", "policy": "linucb"},
            {
                "name": "Hierarchical:explore=0.25",
                "policy": "hierarchical",
                "parameters": {"explore": 0.25},
            },
        ]
        page.get_by_label("Policy", exact=True).select_option("Hierarchical:explore=0.25")
        page.get_by_role("button", name="Apply").click()
        page.locator(".tag", has_text="applied").wait_for()
        assert _asked(process.url, "/v1/configuration")["parameters"] == {"explore": 0.25}
        page = made.go("#/evaluations")
        page.get_by_text("Start an evaluation").click()
        page.get_by_label("Name").fill(HOSTILE)
        refused("exists; delete it, or use another id")
        page.get_by_role("link", name=HOSTILE).click()
        page.get_by_role("button", name="Delete it").click()
        page.get_by_role("button", name="Really delete it").click()
        page.get_by_text("There are none yet.").wait_for()
        assert _asked(process.url, "/v1/evaluations")["evaluations"] == []
        assert page.locator("main img, main script").count() == 0
        made.context.close()
        # The browser itself tells of 403 and 409.
        assert [text for text in made.complaints if "status of 40" not in text] == []


def _asked(url: str, path: str) -> Any:
    return httpx.get(url + path, headers={"X-API-Key": ADMIN}).json()


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
