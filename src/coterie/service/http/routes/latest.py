"""The latest decisions as the routes answer them."""

import asyncio
from collections.abc import Callable
from typing import Annotated, TypeVar

from litestar.datastructures import State
from litestar.params import QueryParameter
from msgspec import Struct

from coterie.service.coordination.coordinator import Coordinator
from coterie.service.core.bandit import Bandit
from coterie.service.reports.latest import LatestDecisions, LoggedDecision

SEARCHED = 100_000  # users or items that a search looks at

T = TypeVar("T")
Limit = Annotated[int, QueryParameter(ge=1, le=200)]
Search = Annotated[str, QueryParameter(max_length=256)]
Name = Annotated[str, QueryParameter(min_length=1, max_length=256)]


class LatestDecision(Struct, frozen=True, rename="camel"):
    """One of the latest decisions."""

    event_id: str
    at: int
    user: str
    chosen: str
    shown: str
    choices: int
    neighbours: int | None
    reward: float | None


async def latest_of(state: State) -> list[LoggedDecision]:
    """Return the latest decisions, newest first."""
    coordinator: Coordinator = state.coordinator
    if "latest" not in state:
        state["latest"], state["latest_lock"] = LatestDecisions(), asyncio.Lock()
    async with state["latest_lock"]:
        sums = coordinator.bandit.config.aggregation != "earliest"
        await asyncio.to_thread(state["latest"].follow, coordinator.store, sums)
        return state["latest"].of(coordinator.bandit)  # type: ignore[no-any-return]


async def look_at(state: State, found: Callable[[str, Bandit, list[LoggedDecision]], T], name: str) -> T:
    """Return what `found` reads from the bandit and the latest decisions about a user or an item."""
    latest = await latest_of(state)
    coordinator: Coordinator = state.coordinator
    return await coordinator.look(lambda: found(name, coordinator.bandit, latest))


def latest_answer(made: LoggedDecision, bandit: Bandit) -> LatestDecision:
    """Return a decision as it is answered."""
    user = bandit.ids[made.user]
    return LatestDecision(
        made.event, made.at, user, made.action.id, made.shown, made.choices, made.members, made.reward
    )
