"""Shards as Ray actors, on one machine or many."""

from contextlib import ExitStack
from typing import Any, final
from weakref import WeakSet

from coterie.engines.cluster import connect, need_ray
from coterie.engines.shard import AnyShard, Kind, Snapshot
from coterie.engines.sharded import Sharded
from coterie.engines.sharded_users import ShardedUsers
from coterie.engines.supervisor import LostError, WhenDown
from coterie.models.checks import check_number
from coterie.models.protocol import Eligible

need_ray()

import ray  # noqa: E402 (only where it is installed)
from ray.exceptions import GetTimeoutError, RayError, RayTaskError  # noqa: E402


@final
class Ray:
    """Keeps users' models in `shards` Ray actors, spread over the machines of a cluster.

    `address` is `ray://host:port`, `host:port` or `auto`; None starts a cluster that only this machine
    can reach. `when_down` says what a question does while a shard is rebuilt: "wait" for it, give a "partial" answer
    that is marked as such, or "refuse". A shard that does not answer within `timeout` seconds counts as lost. Each
    shard's changes are kept in this process until its next snapshot, after `snapshot_every` changes.
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        shards: int = 16,
        when_down: WhenDown = "wait",
        snapshot_every: int = 100_000,
        timeout: float = 60.0,
    ) -> None:
        self.address = address
        self.shards = shards
        self.when_down: WhenDown = when_down
        self.snapshot_every = snapshot_every
        self.timeout = check_number("timeout", timeout)
        # Weak: when models are garbage, Ray ends their actors.
        self._made: WeakSet[Sharded | ShardedUsers] = WeakSet()
        self._leaving = ExitStack()
        self._leaving.enter_context(connect(address))

    def models(
        self, n_features: int | None, one_hot: bool, eligible: Eligible, compensate: bool = True
    ) -> Sharded:
        """Return empty models, in new actors."""
        kind = Kind(n_features, one_hot, eligible, compensate)
        made = Sharded(Actors(self.timeout), kind, self.shards, self.when_down, self.snapshot_every)
        self._made.add(made)
        return made

    def user_store(self) -> ShardedUsers:
        """Return empty storage for users' parts, in new actors."""
        made = ShardedUsers(Actors(self.timeout), self.shards, self.when_down, self.snapshot_every)
        self._made.add(made)
        return made

    def close(self) -> None:
        """End the actors of all models made here, and leave the cluster. A cluster started here ends."""
        for made in list(self._made):
            made.close()
        self._leaving.close()

    def __enter__(self) -> "Ray":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@final
class Actors:
    """A backend of Ray actors. Ray keeps the order of one caller's calls to an actor."""

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout
        self.actors: dict[int, Any] = {}
        # No restart by Ray: it would start an empty shard. No CPUs: a shard works only when it is called.
        self._remote = ray.remote(num_cpus=0, max_restarts=0, scheduling_strategy="SPREAD")

    def start(self, shard: int, kind: type[AnyShard], *parameters: Any) -> None:
        if shard in self.actors:
            self.stop(shard)
        self.actors[shard] = self._remote(kind).remote(*parameters)

    def stop(self, shard: int) -> None:
        ray.kill(self.actors.pop(shard))

    def ask(self, shard: int, method: str, *arguments: Any) -> Any:
        return getattr(self.actors[shard], method).remote(*arguments)

    def is_done(self, ticket: Any) -> bool:
        done, _ = ray.wait([ticket], timeout=0)
        return bool(done)

    def take(self, ticket: Any, patient: bool = False) -> Any:
        try:
            return ray.get(ticket, timeout=None if patient else self.timeout)
        except RayTaskError:
            raise  # an error in the shard's code; the shard is not lost
        except (GetTimeoutError, RayError) as error:
            raise LostError(f"{type(error).__name__}: {error}".splitlines()[0]) from error

    def keep(self, snapshot: Snapshot) -> Any:
        """Put a snapshot in Ray's object store, owned by this process."""
        return ray.put(snapshot)
