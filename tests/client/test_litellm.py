"""The strategy in LiteLLM's own router, whose models answer without a network, with a service in this process."""

import asyncio
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from coterie import Client, ParameterError
from coterie.client.litellm import Strategy, words_of
from tests.client.inside import Inside, inside

MODELS = {"openai/small": 1e-6, "openai/large": 1e-4}  # dollars per token
MESSAGES = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "Add two numbers"}]


@pytest.fixture(scope="module")
def litellm() -> Any:
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        patch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # nothing is downloaded
        return pytest.importorskip("litellm")


@pytest.fixture
def routed(litellm: Any, tmp_path: Path) -> Iterator[tuple[Any, Strategy, Client, Inside]]:
    listed = [
        {
            "model_name": "any",
            "litellm_params": {
                "model": model,
                "api_key": "none",
                "mock_response": "It is 4.",
                "input_cost_per_token": cost,
                "output_cost_per_token": cost,
            },
        }
        for model, cost in MODELS.items()
    ]
    alone = {"model_name": "alone", "litellm_params": listed[0]["litellm_params"]}
    with inside(tmp_path, exploration=0.2) as (client, way), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        router = litellm.Router(model_list=[*listed, alone])
        strategy = Strategy(router, client, price=10.0)
        router.set_custom_routing_strategy(strategy)
        yield router, strategy, client, way


def test_the_service_chooses_the_model_and_learns_quality_minus_price_times_cost(routed: Any) -> None:
    router, strategy, client, _ = routed
    for _ in range(3):
        response = router.completion(model="any", messages=MESSAGES, user="ann")
        event, cost = response._hidden_params["litellm_call_id"], response._hidden_params["response_cost"]
        told = client.explain(event)
        assert told["user"] == "ann"
        assert told["chosen"] == response._hidden_params["litellm_model_name"]
        assert cost == pytest.approx(MODELS[told["chosen"]] * response.usage.total_tokens)
        assert strategy.reward(response, quality=0.8) == "applied"
        assert client.explain(event)["reward"] == pytest.approx(0.8 - 10.0 * cost)


def test_calls_that_are_awaited_are_decided_too(routed: Any) -> None:
    router, strategy, client, _ = routed
    response = asyncio.run(router.acompletion(model="any", messages=MESSAGES))
    told = client.explain(response._hidden_params["litellm_call_id"])
    assert told["chosen"] == response._hidden_params["litellm_model_name"]
    assert strategy.reward(response, quality=1.0, cost=5.0) == "applied"
    assert client.explain(told["eventId"])["reward"] == -1.0  # the smallest reward that can be sent


def test_models_that_cool_down_are_left_out(routed: Any) -> None:
    router, _, _, _ = routed
    (small,) = (
        one
        for one in router.get_model_list(model_name="any")
        if one["litellm_params"]["model"] == "openai/small"
    )
    router.cooldown_cache.add_deployment_to_cooldown(
        model_id=small["model_info"]["id"],
        original_exception=ValueError("busy"),
        exception_status=429,
        cooldown_time=3600,
    )
    response = router.completion(model="any", messages=MESSAGES)
    assert response._hidden_params["litellm_model_name"] == "openai/large"
    response = asyncio.run(router.acompletion(model="any", messages=MESSAGES))
    assert response._hidden_params["litellm_model_name"] == "openai/large"


def test_a_group_of_one_model_needs_no_decision(routed: Any) -> None:
    router, _, _, way = routed
    way.down = True
    assert router.completion(model="alone", messages=MESSAGES).choices[0].message.content == "It is 4."


def test_without_an_answer_of_the_service_the_first_model_answers_and_nothing_is_learned(routed: Any) -> None:
    router, strategy, _, way = routed
    way.down = True
    response = router.completion(model="any", messages=MESSAGES)
    assert response._hidden_params["litellm_model_name"] == "openai/small"
    way.down = False
    assert strategy.reward(response, quality=1.0) == "unknown_event"


def test_what_cannot_be_rewarded_is_refused(routed: Any) -> None:
    _, strategy, client, _ = routed
    with pytest.raises(ParameterError, match="the response has no id"):
        strategy.reward(object(), 1.0)
    with pytest.raises(ParameterError, match="price is nan"):
        Strategy(None, client, price=float("nan"))


def test_the_prompt_is_the_users_last_message_in_words() -> None:
    asked: list[str] = []

    def features(prompt: str) -> dict[str, Any]:
        asked.append(prompt)
        return words_of(prompt)

    with Client("http://127.0.0.1:9", timeout=0.1, within=0.1, attempts=1) as client:
        strategy = Strategy(None, client, price=0.0, features=features)
        deployments = [{"litellm_params": {"model": model}} for model in MODELS]
        parts = [
            {"type": "text", "text": "See"},
            {"type": "image_url", "image_url": "x"},
            {"type": "text", "text": "this"},
        ]
        asking: list[tuple[Any, Any]] = [
            (MESSAGES, None),
            ([{"role": "user", "content": parts}, {"role": "assistant", "content": "ok"}], None),
            (None, "an input"),
            (None, ["two", "inputs"]),
            (None, None),
        ]
        for messages, given in asking:
            strategy._choose(deployments, messages, given, None)
    assert asked == ["Add two numbers", "See this", "an input", "two inputs", ""]
    assert words_of("a " * 500 + " ".join(map(str, range(500))))["word"].keys() >= {"a", "98"}
    assert len(words_of(" ".join(map(str, range(500))))["word"]) == 100
