"""The provider in OpenFeature's own client, with a service in this process."""

import asyncio
import logging
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from coterie import Client, ParameterError
from tests.client.inside import Inside, inside

pytest.importorskip("openfeature")

from openfeature import api
from openfeature.client import OpenFeatureClient
from openfeature.evaluation_context import EvaluationContext
from openfeature.exception import ErrorCode
from openfeature.track import TrackingEventDetails

from coterie.client.openfeature import Provider

FLAGS: dict[str, Any] = {
    "colour": {"red": "#f00", "blue": "#00f"},
    "free-shipping": {"on": True, "off": False},
    "items": {"few": 5, "many": 20},
    "discount": {"none": 0.0, "half": 0.5},
    "layout": {"list": {"columns": 1}, "grid": {"columns": 3}},
}
ANN = EvaluationContext(
    "ann", {"country": "it", "at": datetime(2026, 1, 5, 14, tzinfo=UTC), "tags": ("a", "b")}
)


@pytest.fixture
def open_feature(tmp_path: Path) -> Iterator[tuple[OpenFeatureClient, Client, Inside, Provider]]:
    with inside(tmp_path, exploration=0.2) as (client, way):
        provider = Provider(client, FLAGS, {"colour": "purchase", "items": "visit"})
        api.set_provider(provider)
        try:
            yield api.get_client(), client, way, provider
        finally:
            api.clear_providers()  # shuts it down


def test_flags_of_every_type_have_a_variant_and_the_event_that_decided_it(open_feature: Any) -> None:
    flags, client, _, _ = open_feature
    for flag, ask, default in (
        ("colour", flags.get_string_details, "#000"),
        ("free-shipping", flags.get_boolean_details, False),
        ("items", flags.get_integer_details, 1),
        ("discount", flags.get_float_details, 0.1),
        ("layout", flags.get_object_details, {}),
    ):
        found = ask(flag, default, ANN)
        assert found.error_code is None, found.error_message
        assert found.value == FLAGS[flag][found.variant]
        told = client.explain(found.flag_metadata["event_id"])
        assert (told["user"], told["chosen"]) == ("ann", f"{flag}:{found.variant}")
        assert found.flag_metadata["probability"] == pytest.approx(told["probability"])


def test_the_methods_to_be_awaited_decide_too(open_feature: Any) -> None:
    flags, client, _, _ = open_feature

    async def ask() -> list[Any]:
        return [
            await flags.get_string_details_async("colour", "#000", ANN),
            await flags.get_boolean_details_async("free-shipping", False, ANN),
            await flags.get_integer_details_async("items", 1, ANN),
            await flags.get_float_details_async("discount", 0.1, ANN),
            await flags.get_object_details_async("layout", {}, ANN),
        ]

    for found in asyncio.run(ask()):
        assert (
            client.explain(found.flag_metadata["event_id"])["chosen"] == f"{found.flag_key}:{found.variant}"
        )


def test_a_tracked_event_rewards_the_last_decision_of_the_flags_that_aim_at_it(open_feature: Any) -> None:
    flags, client, _, provider = open_feature
    first, last = (
        flags.get_string_details("colour", "#000", ANN).flag_metadata["event_id"] for _ in range(2)
    )
    other = flags.get_integer_details("items", 1, ANN).flag_metadata["event_id"]
    bob = EvaluationContext("bob")
    theirs = flags.get_string_details("colour", "#000", bob).flag_metadata["event_id"]
    flags.track("purchase", ANN, TrackingEventDetails(0.5))
    flags.track("purchase", ANN, TrackingEventDetails(0.9))  # the decision has its reward already
    flags.track("visit", EvaluationContext("nobody"))
    flags.track("purchase")
    flags.track("anything", None, TrackingEventDetails(attributes={"event_id": theirs}))
    provider._sender.shutdown()
    rewards = {event: client.explain(event)["state"] for event in (first, last, other, theirs)}
    assert rewards == {first: "waiting", last: "rewarded", other: "waiting", theirs: "rewarded"}
    assert client.explain(last)["reward"] == 0.5
    assert client.explain(theirs)["reward"] == 1.0


def test_without_an_answer_a_flag_has_its_default_and_nothing_is_raised(
    open_feature: Any, caplog: pytest.LogCaptureFixture
) -> None:
    flags, _, way, provider = open_feature
    flags.get_string_details("colour", "#000", ANN)
    way.down = True
    found = flags.get_string_details("colour", "#000", ANN)
    assert (found.value, found.variant, found.error_code) == ("#000", None, ErrorCode.GENERAL)
    with caplog.at_level(logging.WARNING):
        flags.track("purchase", ANN)
        provider._sender.shutdown()
    assert "a reward was not taken: the service did not answer" in caplog.text


def test_unknown_flags_and_other_types_are_errors_of_open_feature(open_feature: Any) -> None:
    flags, _, _, _ = open_feature
    assert flags.get_string_details("size", "x", ANN).error_code is ErrorCode.FLAG_NOT_FOUND
    assert flags.get_boolean_details("colour", False, ANN).error_code is ErrorCode.TYPE_MISMATCH
    assert flags.get_integer_details("free-shipping", 1, ANN).error_code is ErrorCode.TYPE_MISMATCH


def test_a_flag_without_variants_is_refused() -> None:
    with Client("http://127.0.0.1:9") as client:
        with pytest.raises(ParameterError, match="the flag 'a' has no variants"):
            Provider(client, {"a": {}})
        with pytest.raises(ParameterError, match="the flag 'b' has no variants"):
            Provider(client, {"a": {"on": True}}, {"b": "purchase"})


def test_the_example_of_the_page_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "service.md").read_text()
    (code,) = re.findall(r"```py\n(from openfeature import api\n.*?)```", page, re.S)
    with inside(tmp_path) as (client, _):
        exec(
            code.replace('Client("http://127.0.0.1:8080", timeout=0.5, within=1.0)', "client"),
            {"client": client},
        )
        value, variant, probability = capsys.readouterr().out.split()
        assert {"green": "#080", "orange": "#f80"}[variant] == value
        assert 0 < float(probability) < 1
