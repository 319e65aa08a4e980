"""A provider for OpenFeature: a flag is a question to the service, its variants are the actions."""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any, TypeVar, final

from openfeature.evaluation_context import EvaluationContext
from openfeature.exception import ErrorCode
from openfeature.flag_evaluation import FlagResolutionDetails, FlagValueType, Reason
from openfeature.provider import AbstractProvider, Metadata
from openfeature.track import TrackingEventDetails

from coterie.client.calls import Ranked
from coterie.client.clients import Client
from coterie.errors import CoterieError, ParameterError

EVENT = "event_id"  # in a flag's metadata, and in the attributes of a tracking event
REMEMBERED = 100_000  # decisions whose reward may come by the user alone; the oldest is forgotten
WAITING = 1_000  # rewards that are not sent yet; more are dropped
Object = Sequence[FlagValueType] | Mapping[str, FlagValueType]
V = TypeVar("V", bound=FlagValueType)
logger = logging.getLogger(__name__)


def _resolvers(kind: type | tuple[type, ...], variants: str) -> tuple[Any, Any]:
    """Return the two methods of a provider that decide flags of a kind; the second is awaited."""

    def resolve(
        self: "Provider",
        flag_key: str,
        default_value: Any,
        evaluation_context: EvaluationContext | None = None,
    ) -> FlagResolutionDetails[Any]:
        return self._resolve(kind, flag_key, default_value, evaluation_context)

    async def resolve_async(
        self: "Provider",
        flag_key: str,
        default_value: Any,
        evaluation_context: EvaluationContext | None = None,
    ) -> FlagResolutionDetails[Any]:
        return await asyncio.to_thread(resolve, self, flag_key, default_value, evaluation_context)

    resolve.__doc__ = f"Decide a flag whose variants are {variants}."
    resolve_async.__doc__ = "Do the same in a thread."
    return resolve, resolve_async


@final
class Provider(AbstractProvider):
    """Answers flags with what the service decides, and sends tracked events to it as rewards.

    client
        The client of the service; its time limits are those of an evaluation.
    flags
        For each flag its variants, by name, with their values. In the service, the variant red of the flag colour is
        the action "colour:red".
    goals
        The tracking event that a flag is to reach; without one, every event counts for it.

    The targeting key is the user, and the attributes are the context. Each evaluation is a decision. `track` rewards
    the user's last decision of each flag, or the one whose `event_id` is among the attributes of the event, with the
    event's value, from -1 to 1, or 1 without a value. If the service does not answer, a flag has its default value.

    >>> from coterie import Client
    >>> provider = Provider(Client("http://127.0.0.1:8080"), {"colour": {"red": "#f00", "blue": "#00f"}})
    >>> provider.get_metadata().name
    'coterie'
    >>> provider.shutdown()
    """

    def __init__(
        self,
        client: Client,
        flags: Mapping[str, Mapping[str, FlagValueType]],
        goals: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__()
        self.client, self.flags, self.goals = client, flags, goals or {}
        for flag in (
            *(flag for flag, variants in flags.items() if not variants),
            *({*self.goals} - {*flags}),
        ):
            raise ParameterError(f"the flag {flag!r} has no variants; name them in flags")
        self._last: OrderedDict[tuple[str, str], Ranked] = OrderedDict()  # by user and flag
        self._sender = ThreadPoolExecutor(1, "coterie-rewards")
        self._waiting = 0

    def get_metadata(self) -> Metadata:
        """Return the provider's name."""
        return Metadata("coterie")

    def shutdown(self) -> None:
        """Send the rewards that still wait, and close the client."""
        self._sender.shutdown()
        self.client.close()

    def track(
        self,
        tracking_event_name: str,
        evaluation_context: EvaluationContext | None = None,
        tracking_event_details: TrackingEventDetails | None = None,
    ) -> None:
        """Send a reward, without waiting for the answer."""
        details, value = tracking_event_details, 1.0
        if details is not None and details.value is not None:
            value = float(details.value)
        named = None if details is None else details.attributes.get(EVENT)
        user = None if evaluation_context is None else evaluation_context.targeting_key
        aims = [
            flag for flag in self.flags if self.goals.get(flag, tracking_event_name) == tracking_event_name
        ]
        decided = [self._last.pop((user, flag), None) for flag in aims] if user else []
        for event in [str(named)] if named is not None else [one for one in decided if one is not None]:
            if self._waiting >= WAITING:
                logger.warning("a reward is dropped: %d are waiting to be sent", self._waiting)
                return
            self._waiting += 1
            self._sender.submit(self._reward, event, value)

    def _reward(self, event: str | Ranked, value: float) -> None:
        try:
            self.client.reward(event, value)
        except CoterieError as error:
            logger.warning("a reward was not taken: %s", error)
        finally:
            self._waiting -= 1

    def _resolve(
        self, kind: type | tuple[type, ...], flag: str, default: V, around: EvaluationContext | None
    ) -> FlagResolutionDetails[V]:
        variants = self.flags.get(flag)
        if variants is None:
            known = ", ".join(self.flags)
            return _failed(default, ErrorCode.FLAG_NOT_FOUND, f"the flag {flag!r} is none of {known}")
        for name, value in variants.items():
            if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
                message = f"the variant {name!r} of {flag!r} has the value {value!r}"
                return _failed(default, ErrorCode.TYPE_MISMATCH, message)
        user = around.targeting_key if around is not None else None
        context = [{"attributes": plain(around.attributes)}] if around and around.attributes else []
        try:
            ranked = self.client.rank(user or None, [f"{flag}:{name}" for name in variants], context)
        except CoterieError as error:
            return _failed(default, ErrorCode.GENERAL, str(error))
        if user:
            self._last.pop((user, flag), None)
            self._last[user, flag] = ranked
            if len(self._last) > REMEMBERED:
                self._last.popitem(last=False)
        variant = ranked.chosen.removeprefix(f"{flag}:")
        shown: Any = variants[variant]
        about = FlagResolutionDetails(shown, reason=Reason.TARGETING_MATCH, variant=variant)
        about.flag_metadata = {EVENT: ranked.event_id, "probability": ranked.probabilities[ranked.chosen]}
        return about

    resolve_boolean_details, resolve_boolean_details_async = _resolvers(bool, "True and False")
    resolve_string_details, resolve_string_details_async = _resolvers(str, "texts")
    resolve_integer_details, resolve_integer_details_async = _resolvers(int, "integers")
    resolve_float_details, resolve_float_details_async = _resolvers(float, "floats")
    resolve_object_details, resolve_object_details_async = _resolvers((list, dict), "lists or mappings")


def plain(value: Any) -> Any:
    """Return an attribute as a feature; of a date the weekday and the hour count, because no date comes again.

    >>> plain({"at": datetime(2026, 1, 5, 14, 30), "tags": ("a", "b")})
    {'at': {'weekday': 'Monday', 'hour': '14'}, 'tags': ['a', 'b']}
    """
    if isinstance(value, datetime):
        return {"weekday": value.strftime("%A"), "hour": str(value.hour)}
    if isinstance(value, Mapping):
        return {str(name): plain(part) for name, part in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [*map(plain, value)]
    return value


def _failed(default: V, code: ErrorCode, message: str) -> FlagResolutionDetails[V]:
    return FlagResolutionDetails(default, error_code=code, error_message=message, reason=Reason.ERROR)
