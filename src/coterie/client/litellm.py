"""A strategy for LiteLLM's router: the service chooses which model answers a prompt."""

import asyncio
import logging
import random
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

from coterie.client.calls import JsonObject, Outcome
from coterie.client.clients import Client
from coterie.errors import CoterieError, ParameterError

CALL = "litellm_call_id"  # LiteLLM's name for the id of a call, which is the id of the event too
MOST_WORDS = 100
logger = logging.getLogger(__name__)


def words_of(prompt: str) -> JsonObject:
    """Return the features of a prompt: its words, each once, and its length in powers of two.

    >>> words_of("What is 2 + 2? What?")
    {'word': {'what': 1, 'is': 1, '2': 1}, 'length': '2^4'}
    """
    words = re.findall(r"[^\W_]+", prompt.lower())
    return {
        "word": {word[:32]: 1 for word in [*dict.fromkeys(words)][:MOST_WORDS]},
        "length": f"2^{max(len(prompt), 1).bit_length() - 1}",
    }


@final
class Strategy:
    """Chooses among the models of a group by asking the service: `router.set_custom_routing_strategy(strategy)`.

    router
        The `litellm.Router`. The actions are the different `litellm_params["model"]` of a group.
    client
        The client of the service.
    price
        What a dollar counts, in units of quality: the reward is quality − price × cost, kept within [-1, 1].
    features
        Returns the features of a prompt, from the text of the last message of the user.

    Models that cool down after errors are left out. If the service does not answer, the first model is taken. The
    `user` of a completion is the user. LiteLLM itself is not imported here.

    >>> from coterie import Client
    >>> client = Client("http://127.0.0.1:8080")
    >>> Strategy(None, client, price=10.0).worth(quality=0.9, cost=0.02)
    0.7
    >>> client.close()
    """

    def __init__(
        self,
        router: Any,
        client: Client,
        *,
        price: float,
        features: Callable[[str], Mapping[str, Any]] = words_of,
    ) -> None:
        if not 0 <= price < float("inf"):
            raise ParameterError(f"price is {price!r}, expected 0 or more per dollar")
        self.router, self.client, self.price, self.features = router, client, price, features

    def worth(self, quality: float, cost: float) -> float:
        """Return the reward of an answer."""
        return max(-1.0, min(1.0, quality - self.price * cost))

    def reward(self, response: Any, quality: float, cost: float | None = None) -> Outcome:
        """Say how good an answer was, from 0 to 1; its cost in dollars is LiteLLM's, unless it is given."""
        about = getattr(response, "_hidden_params", {})
        found = about.get("response_cost") if cost is None else cost
        if found is None or about.get(CALL) is None:
            missing = "cost" if about.get(CALL) is not None else "id"
            raise ParameterError(
                f"the response has no {missing}, expected one of this router's completions; for a stream, name cost"
            )
        return self.client.reward(about[CALL], self.worth(quality, float(found)))

    def get_available_deployment(
        self,
        model: str,
        messages: Sequence[Mapping[str, Any]] | None = None,
        input: str | Sequence[Any] | None = None,
        specific_deployment: bool | None = False,
        request_kwargs: JsonObject | None = None,
    ) -> Any:
        """Return the deployment for a call, as LiteLLM's router asks for it."""
        found = [] if specific_deployment else self.router.get_model_list(model_name=model) or []
        resting = {
            name
            for name, _ in self.router.cooldown_cache.get_active_cooldowns(
                model_ids=[one["model_info"]["id"] for one in found], parent_otel_span=None
            )
        }
        open_to = [one for one in found if one["model_info"]["id"] not in resting]
        if len(_models(open_to)) > 1:
            return self._choose(open_to, messages, input, request_kwargs)
        return type(self.router).get_available_deployment(
            self.router, model, messages, input, specific_deployment, request_kwargs
        )

    async def async_get_available_deployment(
        self,
        model: str,
        messages: Sequence[Mapping[str, Any]] | None = None,
        input: str | Sequence[Any] | None = None,
        specific_deployment: bool | None = False,
        request_kwargs: JsonObject | None = None,
    ) -> Any:
        """Return the deployment for a call that is awaited; the service is asked in a thread."""
        known = {} if request_kwargs is None else request_kwargs
        found = await self.router.async_get_healthy_deployments(
            model=model,
            request_kwargs=known,
            messages=messages,
            input=input,
            specific_deployment=specific_deployment,
            parent_otel_span=None,
        )
        if isinstance(found, dict):
            return found  # asked for by its id
        return await asyncio.to_thread(self._choose, found, messages, input, known)

    def _choose(
        self,
        deployments: Sequence[Mapping[str, Any]],
        messages: Sequence[Mapping[str, Any]] | None,
        input: str | Sequence[Any] | None,
        request: JsonObject | None,
    ) -> Mapping[str, Any]:
        models, request = _models(deployments), {} if request is None else request
        chosen, event = models[0], uuid.uuid4().hex
        if len(models) > 1:
            context = [{"prompt": self.features(_prompt(messages, input))}]
            try:
                chosen = self.client.rank(request.get("user"), models, context, event_id=event).chosen
            except CoterieError as error:
                # The service may have decided for another model, so its event gets no reward.
                event = uuid.uuid4().hex
                logger.warning("%s answers without a decision of the service: %s", chosen, error)
        request[CALL] = event
        return random.choice([one for one in deployments if one["litellm_params"]["model"] == chosen])


def _models(deployments: Sequence[Mapping[str, Any]]) -> list[str]:
    return [*dict.fromkeys(one["litellm_params"]["model"] for one in deployments)]


def _prompt(messages: Sequence[Mapping[str, Any]] | None, input: str | Sequence[Any] | None) -> str:
    """Return the text of the user's last message, or of an input without messages."""
    if not messages:
        return (
            input
            if isinstance(input, str)
            else " ".join(part for part in input or () if isinstance(part, str))
        )
    content = next((one.get("content") for one in reversed(messages) if one.get("role") == "user"), "")
    if isinstance(content, str):
        return content
    return " ".join(part["text"] for part in content or () if isinstance(part, dict) and "text" in part)
