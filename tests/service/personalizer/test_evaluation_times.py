"""The times of `GET /evaluations/{id}`: which part of the time series is answered, and in which intervals."""

from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from litestar.testing import TestClient

from coterie.arrays import Floats
from coterie.evaluation.estimates import estimate
from coterie.evaluation.evidence import Evidence, Span
from coterie.service.evaluations.jobs import Job, encode, milliseconds, moment
from coterie.service.evaluations.time_series import POINTS, time_series
from coterie.service.log.sqlite_store import SqliteStore
from tests.service.personalizer.test_personalizer import PREVIEW, V1, client_of

NOON = milliseconds("2026-11-02T12:00:00Z", "now")
HOUR = 3_600_000


def evidence(records: int) -> Evidence:
    rng = np.random.default_rng(1)
    weights, rewards = rng.uniform(0, 2, records), rng.integers(0, 2, records).astype(float)
    return Evidence(
        weights,
        rewards,
        rng.uniform(0.3, 0.6, records),
        rng.uniform(0.3, 0.6, records),
        2.5,
        Span(0.0, 1.0),
        lost=0.01,
    )


def every(minutes: int, records: int) -> Floats:
    """Return the times of decisions from noon on."""
    return np.array([NOON / 1000 + 60.0 * minutes * k for k in range(records)])


def test_a_point_is_the_estimate_of_its_decisions() -> None:
    found = evidence(60)
    seconds = every(7, 60)
    series = time_series(found, seconds, 0.05)
    assert series.keys() == {"5", "60", "360", "720", "1440"}
    first, second = series["60"][:2]
    assert [first[0], second[0]] == [NOON + HOUR, NOON + 2 * HOUR]
    hours = (seconds - NOON / 1000) // 3600
    for point, hour in ((first, 0), (second, 1)):
        mine = np.flatnonzero(hours == hour)
        assert point[1:] == pytest.approx(estimate(found.part(mine[0], mine[-1] + 1))["dr"], abs=1e-9)
    assert len(series["5"]) == 60  # no two decisions are in one interval of five minutes
    for k in (0, 30, 59):  # from the beginning on
        assert series["5"][k][1:] == pytest.approx(estimate(found.part(0, k + 1))["dr"], abs=1e-9)
    assert series["5"][-1][1:] == pytest.approx(series["1440"][0][1:], abs=1e-9)  # all of it


def test_a_series_has_a_limit_and_a_clock_that_jumps_back_does_no_harm() -> None:
    found = evidence(700)
    seconds = every(60, 700)
    seconds[350] = 0.0
    series = time_series(found, seconds, 0.05)
    assert [len(points) for points in series.values()][:2] == [POINTS, POINTS]
    assert series["5"][0][0] == NOON + 300_000
    assert series["5"][-1][0] == series["60"][-1][0] - HOUR + 300_000
    assert [point[0] for point in series["60"]] == sorted(point[0] for point in series["60"])


@pytest.fixture
def client(tmp_path: Path) -> Any:
    """A service with two evaluations of a day."""
    value = {"value": 0.5, "low": 0.4, "high": 0.6}
    logged = {
        "policy": "logged",
        **dict.fromkeys(("ips", "snips", "dm", "dr"), value),
        "windows": [{"at": (NOON + k * HOUR) / 1000, "dr": value} for k in range(4)],
    }
    series = time_series(evidence(60), every(7, 60), 0.05)
    store = SqliteStore(str(tmp_path / "log.db"))
    part = logged | {"series": series}
    result = {"verdict": "It is so", "words": "In words.", "policies": [part], "notes": []}
    for name in ("new", "other"):
        job = Job(name, "evaluation", name, NOON, NOON + 24 * HOUR, NOON, status="done", result=result)
        store.save_evaluation(f"evaluation {name}", encode(job))
    store.close()
    with client_of(tmp_path) as made:
        yield made


def times(answer: Any) -> list[int]:
    (only,) = answer.json()["content"]["value"]
    return [milliseconds(point["timeStamp"], "at") for point in only["timeseries"]["data"]]


def test_the_series_is_restricted_to_the_requested_time(client: TestClient[Any]) -> None:
    def get(name: str = "new", **query: Any) -> Any:
        answer = client.get(f"{PREVIEW}/evaluations/{name}", params=query)
        assert answer.status_code == 200, answer.text
        return answer

    whole = get()
    assert len(times(whole)) == 60
    content = whole.json()["content"]
    assert (content["startTime"], content["endTime"]) == (moment(NOON), moment(NOON + 24 * HOUR))
    asked = {"startTime": moment(NOON + 2 * HOUR), "endTime": moment(NOON + 4 * HOUR)}
    part = get(**asked)
    assert {name: part.json()["content"][name] for name in asked} == asked
    assert times(part) == [at for at in times(whole) if NOON + 2 * HOUR < at < NOON + 4 * HOUR + 300_000]
    assert times(get(intervalInMinutes=60, window="Rolling", **asked)) == [NOON + 3 * HOUR, NOON + 4 * HOUR]
    assert times(get(window="Rolling", **asked)) == [
        NOON + 3 * HOUR,
        NOON + 4 * HOUR,
    ]  # the default is an hour
    assert times(get(intervalInMinutes=1440, **asked)) == [NOON + 12 * HOUR]
    assert times(get(startTime="2030-01-01", endTime="9999-12-31T23:59:59-14:00")) == []
    assert "policyResults" not in whole.json()


@pytest.mark.parametrize(
    ("query", "target"),
    [
        ({"startTime": "soon"}, "startTime"),
        ({"endTime": ""}, "endTime"),
        ({"startTime": "2026-11-02", "endTime": "2026-11-01"}, "endTime"),
        ({"intervalInMinutes": "7"}, "intervalInMinutes"),
        ({"intervalInMinutes": "60.0"}, "intervalInMinutes"),
        ({"window": "Shrinking"}, "window"),
        ({"window": "Rolling", "intervalInMinutes": "5"}, "window"),
        ({"window": "Expanding", "intervalInMinutes": "60"}, "window"),
    ],
)
def test_bad_times_are_refused_by_name(client: TestClient[Any], query: Any, target: str) -> None:
    answer = client.get(f"{PREVIEW}/evaluations/new", params=query)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["target"]) == (400, "BadRequest", target)
    assert str(query[target]) in error["message"]
    missing = client.get(f"{PREVIEW}/evaluations/none", params=query)
    assert missing.json()["error"]["code"] == "EvaluationNotFound"


def test_the_versions_in_the_path_have_no_such_parameters(client: TestClient[Any]) -> None:
    answer = client.get(f"{V1}/evaluations/none", params={"startTime": "soon"})
    assert answer.json()["error"]["code"] == "EvaluationNotFound"


def test_lists_of_the_last_version_have_pages(client: TestClient[Any]) -> None:
    def get(url: str, **query: Any) -> Any:
        answer = client.get(url, params=query or None)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def ids(page: Any) -> list[str]:
        return [one["id"] for one in page["value"]]

    everything = get(f"{PREVIEW}/evaluations")
    assert "nextLink" not in everything
    assert len(ids(everything)) == 2
    first = get(f"{PREVIEW}/evaluations", maxpagesize=1)
    assert ids(first) == ids(everything)[:1]
    link = httpx.URL(first["nextLink"])
    assert (link.host, link.path) == ("127.0.0.1", f"{PREVIEW}/evaluations")
    second = get(
        link.path, **dict(link.params)
    )  # the client of these tests would drop what the link asks for
    assert ids(second) == ids(everything)[1:]
    assert "nextLink" not in second
    assert "nextLink" not in get(f"{PREVIEW}/evaluations", maxpagesize=1, top=1)
    assert ids(get(f"{PREVIEW}/evaluations", skip=1, top=5)) == ids(everything)[1:]
    assert get(f"{PREVIEW}/evaluations", skip=9) == {"value": []}
    assert client.get(f"{PREVIEW}/evaluations", params={"maxpagesize": "x"}).status_code == 400
    kind = "metadata=evaluationType eq 'Manual'"
    page = get(f"{PREVIEW}/evaluations", filter=kind, maxpagesize=1)
    assert (ids(page), httpx.URL(page["nextLink"]).params["filter"]) == (ids(everything)[:1], kind)
    assert get(f"{PREVIEW}/evaluations", filter="evaluationType eq 'auto'") == {"value": []}
    wrong = client.get(f"{PREVIEW}/evaluations", params={"filter": "status eq 'Failed'"})
    assert (wrong.status_code, wrong.json()["error"]["target"]) == (400, "filter")
