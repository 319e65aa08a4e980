"""The client that waits for its answers."""

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
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
class Client:
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
        self._http = httpx.Client(base_url=url, headers=headers_of(key), **options)
        self._failures = (httpx.TransportError, ValueError)  # no answer, or one that is cut off

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
        call = rank_call(user, actions, context, excluded, event_id, deferred)
        check_fallback(call, fallback)
        try:
            return ranked_of(self._send(call))
        except NoAnswerError as error:
            return fallback_for(call, fallback, error)

    def reward(self, event: Event, value: float, reward_id: str | None = None) -> Outcome:
        """Say what a decision was worth, from -1 to 1; for a fallback nothing is sent."""
        if isinstance(event, Ranked) and event.fallback:
            return "not_sent"
        return cast(Outcome, self._send(reward_call(id_of(event), value, reward_id))["outcome"])

    def reward_many(self, rewards: Sequence[tuple[Event, float]]) -> list[Outcome | NoAnswerError]:
        """Send many rewards at once, and return what became of each; an error stands in the place of its outcome."""

        def one(event: Event, value: float) -> Outcome | NoAnswerError:
            try:
                return self.reward(event, value)
            except NoAnswerError as error:
                return error

        with ThreadPoolExecutor(AT_ONCE, "coterie-rewards") as pool:
            return [*pool.map(lambda pair: one(*pair), rewards)]

    def activate(self, event: Event) -> bool:
        """Say that a deferred decision was shown; returns whether the event is known."""
        if isinstance(event, Ranked) and event.fallback:
            return False
        return bool(self._send(event_call(id_of(event), "activate"))["outcome"] == "activated")

    def explain(self, event: Event) -> dict[str, Any]:
        """Return a decision with its reasons; the key needs the scope read."""
        return cast(dict[str, Any], self._send(event_call(id_of(event), "explain")))

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

    def _send(self, call: Call) -> Any:
        attempts = Attempts(self.limits, time.monotonic())
        while True:
            seconds = attempts.begin(time.monotonic())
            try:
                answer = self._http.request(call.method, call.path, content=call.content, timeout=seconds)
                content = answer.json()
                failed = result_of(answer.status_code, content, answer.headers)
                if failed is None:
                    return content
                why, wait = failed
            except self._failures as error:
                why, wait = f"{type(error).__name__}: {error}", 0.0
            time.sleep(attempts.failed(why, time.monotonic(), wait))
