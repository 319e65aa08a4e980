"""The client whose methods are awaited: the same as in `blocking`, line by line."""

import asyncio
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self, cast, final

from coterie.client.calls import (
    Action,
    Attempts,
    Call,
    Event,
    Features,
    Limits,
    Outcome,
    Ranked,
    check_fallback,
    event_call,
    fallback_for,
    headers_of,
    id_of,
    need_httpx,
    rank_call,
    ranked_of,
    result_of,
    reward_call,
)
from coterie.errors import NoAnswerError

AT_ONCE = 16  # rewards of a batch that are under way together


@final
class AsyncClient:
    """Asks a coterie service for decisions, and sends it rewards, as `Client` does; its methods are awaited.

    url
        Where the service is, such as "http://127.0.0.1:8080".
    key
        A key with the scope decide; None for a service without keys.
    timeout
        Seconds for one attempt.
    within
        Seconds for all attempts of a call.
    attempts
        How often a call is tried.
    options
        Further arguments of `httpx.AsyncClient`, such as `verify`.

    Raises NoAnswerError if no attempt was answered, ServiceError if the service refuses a request, MissingExtraError
    if httpx is not installed.

    >>> import asyncio
    >>> async def main():
    ...     async with AsyncClient("http://127.0.0.1:8080", within=0.5) as client:
    ...         return client.limits.within
    >>> asyncio.run(main())
    0.5
    """

    def __init__(
        self,
        url: str,
        key: str | None = None,
        *,
        timeout: float = 1.0,
        within: float = 5.0,
        attempts: int = 5,
        **options: Any,
    ) -> None:
        need_httpx()
        import httpx

        self.limits = Limits(timeout, within, attempts)
        self._http = httpx.AsyncClient(base_url=url, headers=headers_of(key), **options)
        self._failures = (httpx.TransportError, TimeoutError, ValueError)  # no answer, or one that is cut off

    async def rank(
        self,
        user: str | None,
        actions: Sequence[Action],
        context: Features = (),
        *,
        excluded: Sequence[str] = (),
        event_id: str | None = None,
        deferred: bool = False,
        fallback: str | None = None,
    ) -> Ranked:
        """Choose one of several actions for a user; `fallback` is shown if the service does not answer.

        `user` is None for a visitor who is not known.
        With `deferred` the decision counts only once `activate` says that it was shown.
        """
        call = rank_call(user, actions, context, excluded, event_id, deferred)
        check_fallback(call, fallback)
        try:
            return ranked_of(await self._send(call))
        except NoAnswerError as error:
            return fallback_for(call, fallback, error)

    async def reward(self, event: Event, value: float, reward_id: str | None = None) -> Outcome:
        """Say what a decision was worth, from -1 to 1; for a fallback nothing is sent."""
        if isinstance(event, Ranked) and event.fallback:
            return "not_sent"
        return cast(Outcome, (await self._send(reward_call(id_of(event), value, reward_id)))["outcome"])

    async def reward_many(self, rewards: Sequence[tuple[Event, float]]) -> list[Outcome | NoAnswerError]:
        """Send many rewards at once, and return what became of each; an error stands in the place of its outcome."""

        turns = asyncio.Semaphore(AT_ONCE)

        async def one(event: Event, value: float) -> Outcome | NoAnswerError:
            async with turns:
                try:
                    return await self.reward(event, value)
                except NoAnswerError as error:
                    return error

        return [*await asyncio.gather(*[one(event, value) for event, value in rewards])]

    async def activate(self, event: Event) -> bool:
        """Say that a deferred decision was shown; returns whether the event is known."""
        if isinstance(event, Ranked) and event.fallback:
            return False
        return bool((await self._send(event_call(id_of(event), "activate")))["outcome"] == "activated")

    async def explain(self, event: Event) -> dict[str, Any]:
        """Return a decision with its reasons; the key needs the scope read."""
        return cast(dict[str, Any], await self._send(event_call(id_of(event), "explain")))

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        """Return the client, which `async with` closes."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the connections."""
        await self.close()

    async def _send(self, call: Call) -> Any:
        attempts = Attempts(self.limits, time.monotonic())
        while True:
            seconds = attempts.begin(time.monotonic())
            try:
                async with asyncio.timeout(seconds):
                    answer = await self._http.request(
                        call.method, call.path, content=call.content, timeout=seconds
                    )
                content = answer.json()
                failed = result_of(answer.status_code, content, answer.headers)
                if failed is None:
                    return content
                why, wait = failed
            except self._failures as error:
                why, wait = f"{type(error).__name__}: {error}", 0.0
            await asyncio.sleep(attempts.failed(why, time.monotonic(), wait))
