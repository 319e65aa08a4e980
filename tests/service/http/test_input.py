"""What is refused at the edge, with the reason: names that stand twice, control characters, unreadable features."""

import inspect
import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from litestar.testing import TestClient

from coterie.data.logs.interactions import open_interactions
from coterie.data.logs.rules import Config
from coterie.errors import ContextError, FileError, ParameterError
from coterie.models.features import DEPTH, check_readable, flatten
from coterie.policies import POLICIES
from coterie.policies.base.vowpal_options import is_installed
from coterie.service.core.policy_config import OURS, check_config
from coterie.service.files.payoffs import payoffs_of
from coterie.service.http.duplicate_names import NAMED, check_names
from coterie.service.http.limits import check_numbers
from tests.service.http.test_http import client_of

JSON = {"content-type": "application/json"}


@pytest.fixture(scope="module", params=["hierarchical", "cab"])
def client(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with client_of(tmp_path_factory.mktemp("input"), config=Config(policy=request.param)) as made:
        yield made


def refused(client: TestClient[Any], method: str, path: str, body: str, text: str, *statuses: int) -> None:
    """Send a body, and look for the reason in the answer."""
    before = client.get("/v1/statistics").json()["logRecords"]
    answer = client.request(method, path, content=body.encode(), headers=JSON)
    assert answer.status_code in (statuses or (400,)), answer.text
    assert text in answer.json()["error"]["message"]
    assert client.get("/v1/statistics").json()["logRecords"] == before


TWICE = [
    ("POST", "/v1/rank", '{"user":"a","user":"b","actions":[{"id":"x"}]}', "user"),
    ("POST", "/v1/rank", '{"user":"a","actions":[{"id":"x","id":"y"}]}', "id"),
    ("POST", "/v1/rank", '{"user":"a","actions":[{"id":"x","features":[{"k":1,"k":2}]}]}', "k"),
    ("POST", "/v1/rank", '{"user":"a","actions":[{"id":"x"}],"context":[{"k":{"m":1,"m":":"}}]}', "m"),
    ("POST", "/v1/rank", '{"user":"a","actions":[{"id":"x"}],"context":[{"k":1,"\\u006b":2}]}', "k"),
    ("POST", "/v1/what-if", '{"user":"a","user":"b","actions":[{"id":"x"}]}', "user"),
    ("POST", "/v1/events/e/reward", '{"value":1,"value":0}', "value"),
    ("PUT", "/v1/configuration", '{"wait":1,"wait":2}', "wait"),
    ("POST", "/personalizer/v1.0/rank", '{"actions":[{"id":"x"}],"eventId":"a","eventId":"b"}', "eventId"),
    ("POST", "/personalizer/v1.0/events/e/reward", '{"value":1,"value":0}', "value"),
    ("PUT", "/personalizer/v1.0/configurations/service", '{"defaultReward":1,"defaultReward":0}', "default"),
]


@pytest.mark.parametrize(("method", "path", "body", "name"), TWICE)
def test_a_name_that_stands_twice_is_refused(
    client: TestClient[Any], method: str, path: str, body: str, name: str
) -> None:
    refused(client, method, path, body, f"the name '{name}")


def test_a_parameter_that_stands_twice_is_refused(client: TestClient[Any]) -> None:
    body = json.dumps({"name": "cab", "arguments": "--alpha 0.1 --alpha 0.2"})
    refused(client, "PUT", "/personalizer/v1.0/configurations/policy", body, "name a parameter twice")


JUNK = st.text(alphabet=':"\\ua3A0k{}[],', max_size=6)
PAIRS = st.recursive(
    JUNK | st.integers() | st.none() | st.booleans(),
    lambda inner: st.lists(inner, max_size=3) | st.lists(st.tuples(JUNK, inner), max_size=4).map(tuple),
    max_leaves=12,
)


def written(value: Any, escape: bool) -> tuple[str, bool]:
    """Return a value as JSON, a tuple of pairs as an object, and whether a name stands twice in one."""
    if isinstance(value, str):
        text = "".join(f"\\u{ord(c):04x}" for c in value) if escape else json.dumps(value)[1:-1]
        return f'"{text}"', False
    if isinstance(value, tuple):
        parts = [(written(name, escape)[0], *written(inner, escape)) for name, inner in value]
        twice = len({name for name, _ in value}) < len(value) or any(bad for _, _, bad in parts)
        return "{" + ", ".join(f"{name}: {text}" for name, text, _ in parts) + "}", twice
    if isinstance(value, list):
        found = [written(inner, escape) for inner in value]
        return "[" + ",".join(text for text, _ in found) + "]", any(bad for _, bad in found)
    return json.dumps(value), False


@given(value=PAIRS, escape=st.booleans())
def test_names_are_found_twice_exactly_if_they_stand_twice(value: Any, escape: bool) -> None:
    """Also between colons, quotes, backslashes and escapes; and not where there is nothing to find."""
    text, twice = written(value, escape)
    if twice:
        with pytest.raises(ValueError, match="occurs twice"):
            check_names(text.encode())
    else:
        check_names(text.encode())


def test_a_name_in_a_large_body_is_refused_without_being_searched_for() -> None:
    body = b'{"a": 1, "b": "' + b"x" * NAMED + b'", "a": 2}'
    with pytest.raises(ValueError, match=r"^a name occurs twice in one object$"):
        check_names(body)


@pytest.mark.parametrize("bad", ["a\nb", "\u0000", "a\u001fb", "\u007f", "a\u0085", "tail\n"])
def test_control_characters_are_in_no_id(client: TestClient[Any], bad: str) -> None:
    rule = "no control characters"
    rank, slots = "/personalizer/v1.0/rank", "/personalizer/v1.0/multislot/rank"
    for path in ("/v1/rank", "/v1/what-if"):
        refused(client, "POST", path, json.dumps({"user": "a", "actions": [{"id": bad}]}), rule)
        refused(client, "POST", path, json.dumps({"user": bad, "actions": [{"id": "a"}]}), rule)
    body: dict[str, Any] = {"user": "a", "actions": [{"id": "a"}], "eventId": bad}
    refused(client, "POST", "/v1/rank", json.dumps(body), rule)
    refused(client, "POST", "/v1/events/e/reward", json.dumps({"value": 1, "rewardId": bad}), rule)
    refused(client, "POST", rank, json.dumps({"actions": [{"id": bad}]}), rule)
    refused(client, "POST", rank, json.dumps({"actions": [{"id": "a"}], "eventId": bad}), rule)
    body = {"actions": [{"id": "a"}], "contextFeatures": [{"user": {"id": bad}}]}
    refused(client, "POST", rank, json.dumps(body), rule)
    for slot in ({"id": bad, "baselineAction": "a"}, {"id": "s", "baselineAction": bad}):
        refused(client, "POST", slots, json.dumps({"actions": [{"id": "a"}], "slots": [slot]}), rule)


def test_an_import_has_no_control_characters_in_its_ids(tmp_path: Path) -> None:
    for user, item in (("a\u0000", "x"), ("ann", "x\n")):
        line = {
            "_label_cost": 0,
            "_label_Action": 1,
            "_label_probability": 1,
            "c": {"_coterie": {"user": user}, "_multi": [{"_tag": item}]},
        }
        (tmp_path / "log.dsjson").write_text(json.dumps(line))
        with pytest.raises(FileError, match=r"decision 1 of log.dsjson .* no control characters"):
            list(payoffs_of(open_interactions(tmp_path / "log.dsjson")))


def nested(depth: int, kind: str = "object") -> str:
    """Return a feature object in which the number 1 stands so deep."""
    if kind == "list":
        return '{"a":' + "[" * (depth - 1) + "1" + "]" * (depth - 1) + "}"
    return '{"a":' * depth + "1" + "}" * depth


FEATURES = [
    ('"text"', "Expected `array", 400),
    ("[1]", "Expected `object`, got `int`", 400),
    ('[["a"]]', "Expected `object`, got `array`", 400),
    ('[{"x":1e999}]', "out of range", 400),
    ('[{"x":NaN}]', "malformed", 400),
    ('[{"x":-Infinity}]', "malformed", 400),
    (f'[{{"x":{"9" * 400}}}]', "expected a finite number", 400),
    (f'[{{"x":{"9" * 5000}}}]', "out of range", 400),
    (f"[{nested(DEPTH + 1)}]", f"features nest deeper than {DEPTH} levels at 'a", 422),
    (f"[{nested(DEPTH + 1, 'list')}]", f"features nest deeper than {DEPTH} levels at 'a'", 422),
    (f"[{nested(800)}]", f"features nest deeper than {DEPTH} levels at 'a", 422),
    (f"[{nested(10_000)}]", "recursion", 400),
    (
        "[" + json.dumps({str(k): k for k in range(2_001)}) + "]",
        "more than 2000 features (max-features)",
        413,
    ),
]
PLACES = [  # also where the policy in force does not look, for another may read the log one day
    ("/v1/rank", '{"user":"u","actions":[{"id":"a","features":FEATURES}]}'),
    ("/v1/rank", '{"user":"u","actions":[{"id":"a"}],"context":FEATURES}'),
    ("/v1/what-if", '{"user":"u","actions":[{"id":"a"}],"context":FEATURES}'),
    ("/personalizer/v1.0/rank", '{"actions":[{"id":"a","features":FEATURES}]}'),
    ("/personalizer/v1.0/rank", '{"actions":[{"id":"a"}],"contextFeatures":FEATURES}'),
    (
        "/personalizer/v1.0/multislot/rank",
        '{"actions":[{"id":"a"}],"contextFeatures":FEATURES,"slots":[SLOT]}',
    ),
    ("/personalizer/v1.0/multislot/rank", '{"actions":[{"id":"a"}],"slots":[{"features":FEATURES,SLOT]}'),
]


@pytest.mark.parametrize(("features", "text", "status"), FEATURES, ids=[text for _, text, _ in FEATURES])
def test_features_that_cannot_be_read_are_refused_with_the_reason(
    client: TestClient[Any], features: str, text: str, status: int
) -> None:
    slot = '"id":"s","baselineAction":"a"}'
    for path, body in PLACES:
        if status == 413 and "{SLOT" not in body and '"slots":[{' in body:
            continue  # what all slots make together is a limit of its own
        whole = body.replace("[SLOT]", f"[{{{slot}]").replace("SLOT", slot).replace("FEATURES", features)
        named = text.replace("'a", "'slot.a") if '"slots":[{"features"' in body else text
        refused(client, "POST", path, whole, named, status, 400 if status == 422 else status)


@given(depth=st.integers(1, DEPTH + 4), kind=st.sampled_from(["object", "list"]))
def test_the_edge_refuses_what_flattening_does(depth: int, kind: str) -> None:
    features = [json.loads(nested(depth, kind))]
    if depth > DEPTH:
        for read in (flatten, lambda f: check_readable([[], f])):
            with pytest.raises(ContextError, match="nest deeper"):
                read(features)
    else:
        assert flatten(features)
        check_readable([[], features, [{}]])


@pytest.mark.parametrize("digits", [308, 309, 310, 400])
def test_long_digits_are_refused_exactly_if_they_are_an_infinite_number(digits: int) -> None:
    check_numbers(f'{{"x": "{"9" * digits}"}}'.encode())  # a text
    check_numbers(f'{{"x": {"1" * 309}, "y": 1.{"5" * digits}}}'.encode())  # 1.1e308, and a fraction
    body = f'{{"x": [{{"y": -{"9" * digits}}}]}}'.encode()
    if digits > 308:
        with pytest.raises(ValueError, match=f"has {digits} digits, expected a finite number"):
            check_numbers(body)
    else:
        check_numbers(body)


@pytest.mark.parametrize("name", [*OURS, "nonsense", "self", "a b"])
def test_a_parameter_that_no_policy_takes_is_refused(client: TestClient[Any], name: str) -> None:
    """Also those that a constructor takes and the service decides: `--engine ray` gave 500."""
    values: list[Any] = ["ray", 7, [1], {}]
    for value in values:
        body = json.dumps({"policy": "cab", "parameters": {name: value}})
        refused(client, "PUT", "/v1/configuration", body, name, 422)
    if " " not in name:
        body = json.dumps({"name": "cab", "arguments": f"--{name} ray"})
        refused(client, "PUT", "/personalizer/v1.0/configurations/policy", body, name, 400)


@pytest.mark.parametrize("policy", [name for name in POLICIES if name != "vw" or is_installed()])
def test_whatever_stands_for_a_parameter_is_taken_or_refused(policy: str) -> None:
    for name in inspect.signature(POLICIES[policy]).parameters.keys() - OURS.keys():
        for value in ("ray", -1, 2**70, float("nan"), None, [1], {"a": 1}):
            with suppress(ParameterError):
                check_config(Config(policy=policy, parameters={name: value}))
