"""The client that waits for its answers, and the same with methods that are awaited."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self, TypeVar, final

from coterie.client.calls import (
    AT_ONCE,
    Action,
    Attempts,
    Call,
    Event,
    Features,
    JsonObject,
    Limits,
    Outcome,
    Ranked,
    activate_call,
    connection,
    explain_call,
    friends_call,
    rank_call,
    reward_call,
)
from coterie.errors import CoterieError

T = TypeVar("T")


class _Connected:
    """What both clients are made from."""

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
        self.limits = Limits(timeout, within, attempts)
        self._http, self._failures = connection(type(self).__name__, url, key, options)


@final
class Client(_Connected):
    """Asks a coterie service for decisions, and sends it rewards; it tries again if an answer gets lost.

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
        Further arguments of `httpx.Client`, such as `verify`.

    Every attempt of a call has the same event id or reward id, so nothing is decided or learned twice. Raises
    NoAnswerError if no attempt was answered, ServiceError if the service refuses a request, MissingExtraError if
    httpx is not installed. It can be used from several threads.

    >>> client = Client("http://127.0.0.1:8080", key="ck_example", within=0.5)
    >>> client.close()
    """

    def rank(
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
        return self._send(rank_call(user, actions, context, excluded, event_id, deferred, fallback))

    def reward(
        self,
        event: Event,
        value: float | None = None,
        reward_id: str | None = None,
        parts: Mapping[str, float] | None = None,
        cost: float | None = None,
    ) -> Outcome:
        """Say what a decision was worth, from -1 to 1, or in named parts; for a fallback nothing is sent.

        `cost` is what the shown action really cost, if that was not known before.
        """
        return self._send(reward_call(event, value, reward_id, parts, cost))

    def reward_many(self, rewards: Sequence[tuple[Event, float]]) -> list[Outcome | CoterieError]:
        """Send many rewards at once, and return what became of each; an error stands in the place of its outcome."""

        def one(pair: tuple[Event, float]) -> Outcome | CoterieError:
            try:
                return self.reward(*pair)
            except CoterieError as error:
                return error

        with ThreadPoolExecutor(AT_ONCE, "coterie-rewards") as pool:
            return [*pool.map(one, rewards)]

    def activate(self, event: Event) -> bool:
        """Say that a deferred decision was shown; returns whether the event is known."""
        return self._send(activate_call(event))

    def set_friends(self, user: str, friends: Sequence[str] | Mapping[str, float]) -> dict[str, float]:
        """Make these the friends of a user, and no others; returns them with their weights. Needs the scope admin."""
        return self._send(friends_call(user, friends))

    def explain(self, event: Event) -> JsonObject:
        """Return a decision with its reasons; the key needs the scope read."""
        return self._send(explain_call(event))

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __enter__(self) -> Self:
        """Return the client, which `with` closes."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the connections."""
        self.close()

    def _send(self, call: Call[T]) -> T:
        tried = Attempts(call, self.limits)
        while tried.result is None:
            time.sleep(tried.pause)
            seconds = tried.begin()
            try:
                with self._http.stream(
                    call.method, call.path, content=call.content, timeout=seconds
                ) as answer:
                    content = tried.whole(answer.iter_bytes(), seconds)
            except self._failures as error:
                tried.failed(f"{type(error).__name__}: {error}")
            else:
                tried.answered(answer.status_code, answer.headers, content)
        return tried.result


@final
class AsyncClient(_Connected):
    """Asks a coterie service for decisions, and sends it rewards, as `Client` does; its methods are awaited.

    The parameters url, key, timeout, within and attempts are those of `Client`; options are further arguments of
    `httpx.AsyncClient`.

    >>> async def main():
    ...     async with AsyncClient("http://127.0.0.1:8080", within=0.5) as client:
    ...         return client.limits.within
    >>> asyncio.run(main())
    0.5
    """

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
        """Choose one of several actions for a user, as `Client.rank` does."""
        return await self._send(rank_call(user, actions, context, excluded, event_id, deferred, fallback))

    async def reward(
        self,
        event: Event,
        value: float | None = None,
        reward_id: str | None = None,
        parts: Mapping[str, float] | None = None,
        cost: float | None = None,
    ) -> Outcome:
        """Say what a decision was worth, as `Client.reward` does."""
        return await self._send(reward_call(event, value, reward_id, parts, cost))

    async def reward_many(self, rewards: Sequence[tuple[Event, float]]) -> list[Outcome | CoterieError]:
        """Send many rewards at once, and return what became of each; an error stands in the place of its outcome."""
        turns = asyncio.Semaphore(AT_ONCE)

        async def one(event: Event, value: float) -> Outcome | CoterieError:
            async with turns:
                try:
                    return await self.reward(event, value)
                except CoterieError as error:
                    return error

        return [*await asyncio.gather(*[one(event, value) for event, value in rewards])]

    async def activate(self, event: Event) -> bool:
        """Say that a deferred decision was shown; returns whether the event is known."""
        return await self._send(activate_call(event))

    async def set_friends(self, user: str, friends: Sequence[str] | Mapping[str, float]) -> dict[str, float]:
        """Make these the friends of a user, and no others, as `Client.set_friends` does."""
        return await self._send(friends_call(user, friends))

    async def explain(self, event: Event) -> JsonObject:
        """Return a decision with its reasons; the key needs the scope read."""
        return await self._send(explain_call(event))

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

    async def _send(self, call: Call[T]) -> T:
        tried = Attempts(call, self.limits)
        while tried.result is None:
            await asyncio.sleep(tried.pause)
            seconds = tried.begin()
            try:
                async with asyncio.timeout(seconds):
                    answer = await self._http.request(
                        call.method, call.path, content=call.content, timeout=seconds
                    )
            except self._failures as error:
                tried.failed(f"{type(error).__name__}: {error}")
            else:
                tried.answered(answer.status_code, answer.headers, answer.content)
        return tried.result
