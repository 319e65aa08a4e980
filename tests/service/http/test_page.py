"""The page in a real Chromium: what it shows, hostile ids, keys, dark mode, phone width, keyboard, offline."""

import os
import random
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.service.process import Process, service

sync_api = pytest.importorskip("playwright.sync_api")
CHROMIUM = os.environ.get("COTERIE_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium (apt install chromium)")

IMAGE = "<img src=x onerror=alert(1)>"
SCRIPT = "\"></script><script>alert('2')</script>"
ODD = ["a/b?c#d%41", "a\\b %2F", "/", "é/日本 語%", "‮evil\u200b"]
HOSTILE = [IMAGE, SCRIPT, "{{7*7}}${alert(3)}", "javascript:alert(4)", *ODD, "e" * 256]
ROUTES = ["#/", "#/users", "#/items", "#/what-if", "#/evaluations", "#/user/ann", "#/item/jazz"]
KEY = "read-key-that-is-long-enough"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    """A service whose policy knows neighbours, so that there is something to see on every page."""
    folder = tmp_path_factory.mktemp("page")
    (folder / "settings.toml").write_text('[config]\npolicy = "cab"\nexploration = 0.1\n')
    options = ("--store", str(folder / "log.db"), "--settings", str(folder / "settings.toml"))
    with service(*options) as process:
        fill(process)
        yield process


def fill(process: Process) -> None:
    """Let a small crowd decide: ann and bob agree on jazz, not on news; then come the hostile."""
    chance = random.Random(5)
    taste = {"ann": {"jazz": 1, "news": 1}, "bob": {"jazz": 1, "news": 0}, "cyd": {"jazz": 0, "news": 0}}
    with httpx.Client(base_url=process.url) as client:
        for k in range(60):
            user = chance.choice(["ann", "bob", "cyd"])
            item = chance.choice(["jazz", "news"])
            other = "news" if item == "jazz" else "jazz"
            body = {"user": user, "actions": [{"id": item}, {"id": other}], "eventId": f"e{k}"}
            chosen = client.post("/v1/rank", json=body).json()["chosen"]
            client.post(f"/v1/events/e{k}/reward", json={"value": taste[user][chosen]})
        actions = [{"id": name} for name in HOSTILE]
        for k, user in enumerate(HOSTILE):
            body = {
                "contextFeatures": [{"user": {"id": user}}],
                "actions": actions[k:] + actions[:k],
                "eventId": user,  # an event may be called so too
            }
            answer = client.post("/personalizer/v1.0/rank", json=body)
            assert answer.status_code == 201, answer.text
            answer = client.post(f"/personalizer/v1.0/events/{quoted(user)}/reward", json={"value": 1})
            assert answer.headers["x-coterie-reward"] == "applied", user


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


class Watched:
    """A page whose every complaint and request is kept."""

    def __init__(self, browser: Any, url: str, **options: Any) -> None:
        options.setdefault("viewport", {"width": 1280, "height": 900})
        self.context = browser.new_context(**options)
        self.context.set_default_timeout(300_000)  # a machine may be busy
        self.page = self.context.new_page()
        self.url = url
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on("dialog", self._asked)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("console", self._said)
        self.page.on("request", lambda request: self.requests.append(request.url))

    def _asked(self, dialog: Any) -> None:
        self.complaints.append(f"a dialog: {dialog.message}")
        dialog.dismiss()

    def _said(self, message: Any) -> None:
        if message.type in ("error", "warning") and "401" not in message.text:
            self.complaints.append(message.text)

    def go(self, route: str = "#/") -> Any:
        self.page.goto("about:blank")
        self.page.goto(f"{self.url}/{route}")
        self.page.locator("main[data-ready]").wait_for()
        return self.page


@pytest.fixture
def watched(server: Process, browser: Any, request: pytest.FixtureRequest) -> Iterator[Watched]:
    made = Watched(browser, server.url, **getattr(request, "param", {}))
    yield made
    made.context.close()
    assert made.complaints == []
    assert all(url.startswith((server.url, "about:")) for url in made.requests)  # nothing from elsewhere


def quoted(name: str) -> str:
    from urllib.parse import quote

    return quote(name, safe="")


def test_the_overview_shows_what_was_decided_and_earned(watched: Watched) -> None:
    page = watched.go()
    figures = page.locator("dl.figures").inner_text()
    for name in ("Decisions", "Average payoff", "The baseline's", "A uniform choice's", "Users", "Items"):
        assert name in figures
    assert figures.startswith("Against the baseline")
    for title in ("Average payoff over time", "Users a decision rests on", "Learned by sharing", "Latency"):
        assert page.get_by_role("heading", name=title).is_visible()
    chart = page.get_by_role("img", name="Average payoff over time")
    assert "this service" in chart.get_attribute("aria-label")
    assert page.get_by_role("region", name="The latest decisions").locator("tbody tr").count() == 15
    assert "cab, online" in page.get_by_role("status").inner_text()
    with page.expect_response("**/v1/statistics?minutes=1440"):
        page.get_by_role("button", name="1 day").click()
    assert page.get_by_role("button", name="1 day").get_attribute("aria-pressed") == "true"


def test_a_user_resembles_others_on_one_item_and_not_on_another(watched: Watched) -> None:
    page = watched.go("#/user/ann")
    assert page.get_by_role("heading", level=1).inner_text() == "ann"
    matrix = page.locator("table.matrix")
    names = [text.strip() for text in matrix.locator("thead th a").all_inner_texts()]
    for item, kind in (("jazz", "alike"), ("news", "different")):
        row = matrix.locator("tbody tr", has=page.get_by_role("link", name=item, exact=True))
        cells = row.locator("td:not(.n)").all_text_contents()
        assert cells[names.index("bob")] == kind, (item, names, cells)


def test_an_item_splits_the_users(watched: Watched) -> None:
    page = watched.go("#/item/jazz")
    groups = page.locator("section.card", has=page.locator("table")).all_inner_texts()
    assert len(groups) >= 2
    first = groups[0]
    assert "ann" in first
    assert "bob" in first
    assert "cyd" not in first


def test_what_if_explains_and_records_nothing(watched: Watched, server: Process) -> None:
    page = watched.go("#/what-if")
    before = httpx.get(f"{server.url}/v1/statistics").json()["logRecords"]
    page.get_by_label("User").fill("ann")
    page.get_by_label("Actions").fill('news\n{"id": "jazz"}')
    page.get_by_role("button", name="Explain").click()
    answer = page.get_by_role("region", name="Why")
    answer.wait_for()
    assert answer.locator("tbody tr").count() == 2
    assert "shown" in answer.inner_text()
    assert httpx.get(f"{server.url}/v1/statistics").json()["logRecords"] == before
    page.get_by_label("Context").fill("[{")
    page.get_by_role("button", name="Explain").click()
    assert "not JSON" in page.get_by_role("alert").inner_text()


def test_a_decision_is_explained(watched: Watched) -> None:
    page = watched.go("#/event/e1")
    assert page.get_by_role("heading", name="Why it was decided so").is_visible()
    assert page.get_by_role("region", name="Why").locator("tbody tr").count() == 2


def test_a_decision_of_the_one_model_is_explained_by_name(browser: Any, tmp_path: Path) -> None:
    with service("--store", str(tmp_path / "log.db")) as process:
        fill(process)
        actions = [{"id": name, "features": [{"title": IMAGE}]} for name in HOSTILE[:2]]
        for event in ("first", "second"):
            body = {"user": "ann", "actions": actions, "context": [{"place": SCRIPT}], "eventId": event}
            assert httpx.post(f"{process.url}/v1/rank", json=body).status_code == 201
            httpx.post(f"{process.url}/v1/events/{event}/reward", json={"value": 1})
        made = Watched(browser, process.url)
        page = made.go("#/event/second")
        assert page.get_by_role("region", name="Why").locator("tbody tr").count() == 2
        most = page.get_by_role("region", name="What mattered most")
        assert 1 <= most.locator("tbody tr").count() <= 8
        assert page.locator("main img, main script").count() == 0
        page = made.go()  # this policy has no neighbours, and what is said about them is left out
        assert re.search(r"Items\n[1-9]", page.locator("dl.figures").inner_text())
        for title in ("Users a decision rests on", "Learned by sharing"):
            assert not page.get_by_role("heading", name=title).is_visible()
        assert page.get_by_role("heading", name="Latency since the start").is_visible()
        assert re.search(r"state is [\d.]+ ms behind the log", page.locator("main").inner_text())
        assert "Rested on" not in page.get_by_role("region", name="The latest decisions").inner_text()
        made.context.close()
        assert made.complaints == []


def test_a_decision_says_what_a_frequency_cap_left_out(browser: Any, tmp_path: Path) -> None:
    with service("--store", str(tmp_path / "log.db")) as process:
        caps = [{"looks": 1, "period": 3600}]
        assert httpx.put(f"{process.url}/v1/configuration", json={"caps": caps}).status_code == 200
        for event in ("first", "second", "third"):
            body = {"user": "ann", "actions": [{"id": IMAGE}, {"id": "news"}], "eventId": event}
            assert httpx.post(f"{process.url}/v1/rank", json=body).status_code == 201
        for size in ({"width": 1280, "height": 800}, {"width": 390, "height": 844}):
            made = Watched(browser, process.url)
            made.page.set_viewport_size(size)
            for event, capped, every in (
                ("first", False, False),
                ("second", True, False),
                ("third", True, True),
            ):
                said = made.go(f"#/event/{event}").locator("main").inner_text()
                assert ("A frequency cap leaves out " in said) == capped
                assert ("That is every action, so the baseline is shown." in said) == every
                assert made.page.locator("main img").count() == 0
            assert made.page.evaluate("document.documentElement.scrollWidth") <= size["width"]
            made.context.close()
            assert made.complaints == []


def seen(name: str) -> str:
    """Return an id as the page shows it: characters that turn text around, or cannot be seen, as their codes."""
    return name.replace("\u202e", "\\u202e").replace("\u200b", "\\u200b")


@pytest.mark.parametrize("sent", HOSTILE)
def test_hostile_ids_are_text(watched: Watched, sent: str) -> None:
    name = seen(sent)
    for route in (f"#/user/{quoted(sent)}", f"#/item/{quoted(sent)}"):
        page = watched.go(route)
        assert page.get_by_role("heading", level=1).inner_text() == name
        assert page.locator("main img, main script, main iframe").count() == 0
    assert name in page.title()
    page = watched.go(f"#/event/{quoted(sent)}")
    assert f"Event {name}, " in page.locator("main").inner_text()
    assert page.locator("main img, main script, main iframe").count() == 0
    page.locator(".lead").get_by_role("link", name=name, exact=True).click()
    page.get_by_role("heading", level=1, name=name).wait_for()
    page = watched.go("#/users")
    page.get_by_label("Find by a part of the id").fill(sent)
    page.get_by_role("link", name=name, exact=True).click()
    page.get_by_role("heading", level=1, name=name).wait_for()
    page = watched.go("#/what-if")
    page.get_by_label("User").fill(sent)
    page.get_by_label("Actions").fill("\n".join(other for other in HOSTILE if not other.startswith("{")))
    page.get_by_role("button", name="Explain").click()
    page.get_by_role("region", name="Why").wait_for()
    assert page.locator("main img, main script, main iframe").count() == 0


def test_hostile_ids_in_every_list(watched: Watched) -> None:
    for route in ("#/", "#/users", "#/items"):
        page = watched.go(route)
        assert IMAGE in page.locator("main").inner_text()
        assert page.locator("main img, main script").count() == 0
    page = watched.go("#/user/nobody-at-all")
    assert "cannot be shown" in page.get_by_role("heading", level=1).inner_text()
    watched.complaints.clear()  # the browser itself tells of the 404


@pytest.mark.parametrize(
    "route",
    [
        "#/usres",
        "#/usr/ann",
        "#/users/ann",
        "#/what-if/x",
        "#/user",
        "#/item/",
        "#/constructor/a",
        "#nowhere",
    ],
)
def test_a_mistyped_route_says_so(watched: Watched, route: str) -> None:
    page = watched.go(route)
    assert page.get_by_role("heading", level=1).inner_text() == "There is no such page"
    assert f"Nothing is at {route}." in page.locator("main").inner_text()
    page.get_by_role("link", name="Go to the overview").click()
    page.get_by_role("heading", level=1, name="What was decided and earned").wait_for()


def test_figures_have_intervals_and_what_is_not_known_is_called_unknown(browser: Any, tmp_path: Path) -> None:
    (tmp_path / "settings.toml").write_text('[config]\nmode = "apprentice"\n')
    options = ("--store", str(tmp_path / "log.db"), "--settings", str(tmp_path / "settings.toml"))
    with service(*options) as process:
        with httpx.Client(base_url=process.url) as client:
            for k in range(60):
                body = {"user": "ann", "actions": [{"id": "jazz"}, {"id": "news"}], "eventId": f"e{k}"}
                client.post("/v1/rank", json=body)
                client.post(f"/v1/events/e{k}/reward", json={"value": k % 2})
        made = Watched(browser, process.url)
        page = made.go()
        ours, baseline, uniform = page.locator(".figure").all_inner_texts()[1:4]
        assert "0.500" in ours
        assert "0.378 to 0.622" in ours
        assert "0.378 to 0.622" in baseline
        assert "not to be told from ours" in baseline
        assert "unknown" in uniform
        assert "cannot be estimated" in uniform
        assert "the baseline is shown" in page.get_by_role("status").inner_text()
        legend = page.locator(".legend").first.inner_text()
        assert "this service 0.500 (" in legend
        assert "uniform choice unknown" in legend
        agreed = page.locator(".figure").first.inner_text()
        assert "We would have agreed" in agreed
        assert "%" in agreed
        assert "we would earn" in agreed
        made.context.close()
        assert made.complaints == []


def test_the_page_compares_with_the_baseline_first(browser: Any, tmp_path: Path) -> None:
    """With users held back, the lift is measured; on a phone its tables are whole; a loop without chance is said."""
    (tmp_path / "settings.toml").write_text("[config]\nholdback = 0.3\nexploration = 0.0\n")
    options = ("--store", str(tmp_path / "log.db"), "--settings", str(tmp_path / "settings.toml"))
    with service(*options) as process:
        made = Watched(browser, process.url, viewport={"width": 360, "height": 740})
        page = made.go()
        assert "Against those held back" in page.locator(".figure").first.inner_text()
        assert "unknown" in page.locator(".figure").first.inner_text()
        assert not page.get_by_role("alert").is_visible()
        with httpx.Client(base_url=process.url) as client:
            for k in range(560):  # enough for any draw of those held back
                actions = [{"id": "jazz"}, {"id": "news"}]
                body = {"user": f"user-{k % 40}", "actions": actions, "eventId": f"e{k}"}
                chosen = client.post("/v1/rank", json=body).json()["chosen"]
                client.post(f"/v1/events/e{k}/reward", json={"value": float(chosen == "news")})
        page = made.go()
        first = page.locator(".figure").first.inner_text()
        assert "measured on" in first
        assert "users held back" in first
        assert "stopped exploring" in page.get_by_role("alert").inner_text()
        arms = page.get_by_role("region", name="Arms")
        assert arms.get_by_role("row").count() == 2 + 1
        for word in ("this service", "held back", "hierarchical", "baseline"):
            assert word in arms.inner_text()
        assert "this service against held back" in page.get_by_role("region", name="Lifts").inner_text()
        assert "held back" in page.locator(".legend").first.inner_text()
        assert (
            page.locator("line.whisker.holdback").count() >= 1 or page.locator(".band-holdback").count() >= 1
        )
        for region in page.locator(".scroll").all():
            assert region.evaluate("(e) => e.scrollWidth <= e.clientWidth")
        made.context.close()
        assert made.complaints == []


def test_the_whole_page_goes_by_keyboard(watched: Watched) -> None:
    page = watched.go()
    press, focused = page.keyboard.press, page.locator(":focus")
    press("Tab")
    assert focused.inner_text() == "Skip to the content"
    for _ in range(3):
        press("Tab")
    assert focused.inner_text() == "Users"
    press("Enter")
    page.get_by_role("heading", level=1, name="Users").wait_for()
    page.locator("h1:focus", has_text="Users").wait_for()  # a screen reader begins there
    press("Tab")
    page.keyboard.type("ann")
    page.locator("[data-search=ann]").wait_for()  # the last of three answers, one for each letter
    press("Tab")  # the table, which scrolls
    press("Tab")
    assert focused.inner_text() == "ann"
    press("Enter")
    page.get_by_role("heading", level=1, name="ann").wait_for()


def test_a_late_answer_leaves_the_focus_where_it_was(watched: Watched) -> None:
    page = watched.go("#/users")
    held: list[Any] = []
    page.route("**/v1/users?*search=ann", lambda route: held.append(route))
    search = page.get_by_label("Find by a part of the id")
    search.fill("an")
    page.locator("[data-search=an]").wait_for()
    with page.expect_request("**/v1/users?*search=ann"):
        search.fill("ann")
    page.get_by_role("link", name="ann", exact=True).focus()
    held[0].continue_()
    page.locator("[data-search=ann]").wait_for()
    assert page.locator(":focus").inner_text() == "ann"


def test_the_chart_is_read_by_keyboard_and_the_updates_pause(watched: Watched) -> None:
    page = watched.go()
    page.get_by_role("button", name="Pause").press("Enter")
    assert page.get_by_role("button", name="Go on").get_attribute("aria-pressed") == "true"
    page.get_by_role("img", name="Average payoff over time").focus()
    page.keyboard.press("ArrowLeft")
    assert page.locator(".legend li").last.inner_text() != "latest"
    assert page.locator(".chart .cursor").first.get_attribute("visibility") == "visible"


BOXES = """((which) => [...document.querySelectorAll(which)].filter((e) => e.checkVisibility())
    .map((e) => e.getBoundingClientRect()))"""


@pytest.mark.parametrize("watched", [{"viewport": {"width": 360, "height": 740}}], indirect=True)
def test_a_phone_shows_every_page_without_sideways_scrolling(watched: Watched) -> None:
    for route in [*ROUTES, "#/event/e1", f"#/user/{quoted('e' * 256)}", f"#/item/{quoted(SCRIPT)}"]:
        page = watched.go(route)
        wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wide <= 0, route
        # In one call: the page draws itself again from time to time.
        heights = page.evaluate(f"{BOXES}('nav a, button').map((box) => box.height)")
        assert all(height >= 40 for height in heights), route
        page.evaluate("for (const more of document.querySelectorAll('details')) more.open = true")
        cut_off = page.evaluate(
            """[...document.querySelectorAll(".scroll")].filter((e) => e.scrollWidth > e.clientWidth)
            .map((e) => e.getAttribute("aria-label"))"""
        )
        assert cut_off == [], route
        cells = page.evaluate(
            f"{BOXES}('main table:not(.matrix) td .value').map((box) => [box.left, box.right])"
        )
        assert all(left >= 0 and right <= 360 for left, right in cells), route


CONTRAST = """() => {
  const part = (c) => (c /= 255) <= .03928 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4;
  const light = ([r, g, b]) => .2126 * part(r) + .7152 * part(g) + .0722 * part(b);
  const read = (text) => (text.match(/[\\d.]+/g) || []).map(Number);
  const ground = (e) => { for (; e; e = e.parentElement) { const c = read(getComputedStyle(e).backgroundColor);
    if (c.length === 3 || c[3] === 1) return c; } return [255, 255, 255]; };
  const bad = [];
  for (const e of document.querySelectorAll("body *")) {
    const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
    if (!own || !e.getClientRects().length || e.closest(".hidden, dialog:not([open]), noscript")) continue;
    const style = getComputedStyle(e), ink = read(e instanceof SVGElement ? style.fill : style.color);
    const [a, b] = [light(ink), light(ground(e))].sort((x, y) => y - x);
    if ((a + .05) / (b + .05) < 4.5) bad.push(`${e.tagName} ${e.textContent.slice(0, 30)} ${style.color}`);
  }
  return bad;
}"""


@pytest.mark.parametrize("watched", [{"color_scheme": "light"}, {"color_scheme": "dark"}], indirect=True)
def test_every_text_can_be_read_in_light_and_dark(watched: Watched, request: pytest.FixtureRequest) -> None:
    dark = watched.page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches")
    for route in [*ROUTES, "#/event/e1"]:
        page = watched.go(route)
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (ground == "rgb(19, 21, 25)") == dark
        assert page.evaluate(CONTRAST) == [], route


def test_the_page_has_names_for_everything(watched: Watched) -> None:
    for route in ROUTES:
        page = watched.go(route)
        unnamed = page.evaluate(
            """[...document.querySelectorAll("input, textarea, select, button, svg[role=img], a")].filter((e) =>
            !e.closest("dialog") && !(e.labels && e.labels.length) && !e.getAttribute("aria-label")
            && !e.textContent.trim()).map((e) => e.outerHTML)"""
        )
        assert unnamed == [], route
        assert page.locator("h1").count() == 1


def test_the_key_is_asked_for_kept_in_the_tab_and_never_in_an_address(
    browser: Any, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    environment = {"COTERIE_KEY_WATCH": f"read:{KEY}", "COTERIE_KEY_APP": "decide:decide-key-long-enough-too"}
    with service("--store", str(tmp_path / "log.db"), environment=environment) as process:
        watched = Watched(browser, process.url)
        sent: list[dict[str, str]] = []
        watched.page.on("request", lambda made: sent.append(made.headers))
        page = watched.go()
        dialog = page.get_by_role("dialog", name="A key is needed")
        assert dialog.is_visible()
        page.get_by_label("Key", exact=True).fill("wrong-key")
        page.keyboard.press("Enter")
        page.get_by_text("The key does not fit").wait_for()
        page.get_by_label("Key", exact=True).fill(KEY)
        page.keyboard.press("Enter")
        page.get_by_text("hierarchical, online").wait_for()
        assert not dialog.is_visible()
        assert page.evaluate("[sessionStorage.getItem('coterie-key'), localStorage.length]") == [KEY, 0]
        assert watched.context.cookies() == []
        assert all(KEY not in url for url in [*watched.requests, page.url])
        assert any(headers.get("x-api-key") == KEY for headers in sent)
        other = watched.context.new_page()  # another tab knows nothing
        other.goto(process.url)
        other.get_by_role("dialog", name="A key is needed").wait_for()
        watched.context.close()
        assert [text for text in watched.complaints if "403" not in text] == []
        for path in ("/v1/statistics", "/v1/users", "/v1/split?item=a", "/v1/resemblance?user=a"):
            assert httpx.get(process.url + path).status_code == 401
            key = {"X-API-Key": "decide-key-long-enough-too"}
            assert httpx.get(process.url + path, headers=key).status_code == 403


def test_the_pages_files_are_strict_and_whole(server: Process) -> None:
    answer = httpx.get(server.url)
    policy = answer.headers["content-security-policy"]
    assert "unsafe" not in policy
    assert "default-src 'none'" in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    folder = Path(__file__).parents[3] / "src" / "coterie" / "service" / "http" / "page"
    for file in folder.iterdir():
        path = "/" if file.name == "index.html" else f"/page/{file.name}"
        found = httpx.get(server.url + path)
        assert found.content == file.read_bytes(), path
        text = file.read_text()
        for forbidden in (
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "style=",
        ):
            assert forbidden not in text, f"{file.name} uses {forbidden}"
        assert "https://" not in text
    assert httpx.get(f"{server.url}/page/../serve.py").status_code == 404
