"""Numbers for Prometheus: requests, commits, and what the engine holds."""

import math
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily

from coterie.service.figures import exploring

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from coterie.service.core.coordinator import Coordinator

LATENCY = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)


def _learning(coordinator: "Coordinator") -> "Iterator[tuple[str, str, float]]":
    """Yield how much the choices leave to chance, and how often best guesses change; NaN is unknown."""
    engine = coordinator.engine
    varied, bits = exploring.recent(engine.statistics, engine.now)
    total = engine.statistics.total
    going = not exploring.stopped(engine.statistics, engine.config, engine.now)
    changes = math.nan if coordinator.guess_changes is None else coordinator.guess_changes
    agreed = total.agreed / total.judged if total.judged else math.nan
    yield "coterie_exploring", "0 if the loop stopped exploring", float(going)
    yield (
        "coterie_decision_entropy_bits",
        "Entropy of the choices of the last hour, on average",
        bits / varied if varied else math.nan,
    )
    yield (
        "coterie_best_guess_changes",
        "Share of the last hour's best guesses that would be others now",
        changes,
    )
    yield "coterie_baseline_agreement", "How often the best guess was the baseline's choice", agreed


class Metrics:
    """One registry per service, so that a process can have several services."""

    def __init__(self, coordinator: "Coordinator") -> None:
        self.registry = CollectorRegistry()
        self._requests = Histogram(
            "coterie_request_seconds",
            "Time to answer",
            ["route", "status"],
            registry=self.registry,
            buckets=LATENCY,
        )
        self._commits = Histogram(
            "coterie_commit_seconds", "Time of a group commit", registry=self.registry, buckets=LATENCY
        )
        self._records = Counter("coterie_log_records", "Records made durable", registry=self.registry)
        self._rewards = Counter("coterie_rewards", "Rewards by outcome", ["outcome"], registry=self.registry)
        self._refused = Counter(
            "coterie_connections_refused", "Connections beyond max-connections", registry=self.registry
        )
        self._cut_off = Counter(
            "coterie_connections_cut_off",
            "Connections closed because headers, a body, or the reading of an answer took too long",
            ["waiting"],
            registry=self.registry,
        )
        self.connections: Callable[[], int] = lambda: 0  # how many are open
        self.coordinator = coordinator
        self._children: dict[tuple[str, int], Histogram] = {}
        self.registry.register(self)
        coordinator.on_batch = self.committed

    def answered(self, route: str, status: int, seconds: float) -> None:
        """Count a request."""
        child = self._children.get((route, status))
        if child is None:
            child = self._children[route, status] = self._requests.labels(route, str(status))
        child.observe(seconds)

    def committed(self, records: int, seconds: float) -> None:
        """Count a group commit."""
        self._commits.observe(seconds)
        self._records.inc(records)

    def refused(self) -> None:
        """Count a connection beyond max-connections."""
        self._refused.inc()

    def cut_off(self, waiting: str) -> None:
        """Count a connection that was closed because it was too slow."""
        self._cut_off.labels(waiting).inc()

    def rewarded(self, outcome: str) -> None:
        """Count a reward."""
        self._rewards.labels(outcome).inc()

    def collect(self) -> "Iterator[GaugeMetricFamily]":
        """Yield the engine's numbers."""
        engine = self.coordinator.engine
        learned = engine.learned
        total = engine.statistics.total
        ready = self.coordinator.refusing is None
        for name, text, value in (
            ("coterie_ready", "1 if writes are accepted", float(ready)),
            ("coterie_waiting", "1 if another process owns the database", float(self.coordinator.waiting)),
            ("coterie_users", "Users known", len(engine.users)),
            ("coterie_items", "Items known", len(engine.known_items)),
            ("coterie_events_remembered", "Events remembered", len(engine.events)),
            ("coterie_events_waiting", "Events that may still get a reward", engine.waiting),
            ("coterie_log_position", "Records in the log so far", engine.position),
            ("coterie_payoffs_learned", "Payoffs learned by the model", learned),
            ("coterie_decisions", "Decisions made", total.all_decisions),
            ("coterie_decisions_explored", "Decisions by chance", total.explored),
            ("coterie_earned", "Sum of payoffs learned", total.all_earned),
            (
                "coterie_model_updates",
                "Users' models updated; beyond payoffs learned it is sharing",
                total.updates,
            ),
            ("coterie_queue", "Requests that wait for their turn or for the disk", self.coordinator.queued),
            ("coterie_connections", "Connections open", self.connections()),
            *_learning(self.coordinator),
        ):
            yield GaugeMetricFamily(name, text, value)
        arms = {} if engine.trial is None else engine.trial.arms
        for name, text, kind in (
            ("coterie_arm_users", "Users of a trial's arm with a payoff", "users"),
            ("coterie_arm_payoffs", "Payoffs of a trial's arm", "learned"),
            ("coterie_arm_earned", "Sum of payoffs of a trial's arm", "earned"),
        ):
            family = GaugeMetricFamily(name, text, labels=["arm"])
            for arm, sums in arms.items():
                family.add_metric([arm], getattr(sums, kind))
            yield family

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self.registry)
