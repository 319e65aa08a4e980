"""Numbers for Prometheus: requests, commits, and what the bandit holds."""

import math
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from coterie.service.coordination.coordinator import Coordinator
from coterie.service.reports import exploring
from coterie.service.trial.report import report

LATENCY = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)


class Metrics:
    """One registry per service, so that a process can have several services."""

    def __init__(self, coordinator: Coordinator) -> None:
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
        self.rewards = Counter("coterie_rewards", "Rewards by outcome", ["outcome"], registry=self.registry)
        self.refused = Counter(
            "coterie_connections_refused", "Connections beyond max-connections", registry=self.registry
        )
        self.cut_off = Counter(
            "coterie_connections_cut_off",
            "Connections closed because headers, a body, or the reading of an answer took too long, or to make room",
            ["waiting"],
            registry=self.registry,
        )
        self.connections: Callable[[], int] = lambda: 0  # how many are open
        self.coordinator = coordinator
        self._children: dict[tuple[str, int], Histogram] = {}
        self.registry.register(self)
        coordinator.sequencer.on_batch = self.committed

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

    def collect(self) -> Iterator[Metric]:
        """Yield the bandit's numbers; NaN is unknown."""
        coordinator = self.coordinator
        bandit = coordinator.bandit
        total = bandit.statistics.total
        going = exploring.warning(bandit.statistics, bandit.config, bandit.now) is None
        varied, bits = exploring.recent(bandit.statistics, bandit.now)
        entropy = bits / varied if varied else math.nan
        changes = coordinator.background.guess_changes
        changing = math.nan if changes is None else changes
        agreed = total.agreed / total.champion.decisions if total.champion.decisions else math.nan
        for name, text, value in (
            ("coterie_ready", "1 if writes are accepted", float(coordinator.not_ready is None)),
            (
                "coterie_behind_seconds",
                "How long ago the state was last known to be what the log says",
                coordinator.sequencer.behind,
            ),
            ("coterie_users", "Users known", len(bandit.users)),
            ("coterie_items", "Items known", len(bandit.policies.known_items)),
            ("coterie_events_remembered", "Events in memory", len(bandit.events)),
            (
                "coterie_events_removed_early",
                "Events removed before their wait had ended, because there was no room",
                bandit.remembered.removed,
            ),
            ("coterie_events_waiting", "Events that may still get a reward", bandit.remembered.open),
            ("coterie_log_position", "Records in the log so far", bandit.position),
            ("coterie_payoffs_learned", "Payoffs learned by the model", bandit.policies.learned),
            ("coterie_payoffs_skipped", "Payoffs that could not be learned, since the start", bandit.skipped),
            (
                "coterie_log_damaged",
                "Places of the log that cannot be read",
                len(coordinator.background.damaged),
            ),
            ("coterie_decisions", "Decisions made", total.decisions),
            ("coterie_decisions_explored", "Decisions by chance", total.explored),
            ("coterie_earned", "Sum of payoffs learned", total.earned),
            (
                "coterie_model_updates",
                "Users' models updated; beyond payoffs learned it is sharing",
                total.updates,
            ),
            (
                "coterie_queue",
                "Requests that wait for their turn or for the disk",
                coordinator.sequencer.queued,
            ),
            ("coterie_connections", "Connections open", self.connections()),
            ("coterie_exploring", "0 if the loop stopped exploring", float(going)),
            ("coterie_decision_entropy_bits", "Entropy of the choices of the last hour, on average", entropy),
            (
                "coterie_best_guess_changes",
                "Share of the last hour's best guesses that would be others now",
                changing,
            ),
            ("coterie_baseline_agreement", "How often the best guess was the baseline's choice", agreed),
        ):
            yield GaugeMetricFamily(name, text, value)
        if bandit.spending is not None:
            yield CounterMetricFamily("coterie_spent", "Spent of the budget", bandit.spending.spent)
            yield GaugeMetricFamily("coterie_price", "Price of cost, in payoffs", bandit.spending.price)
        stops = GaugeMetricFamily(
            "coterie_guardrail_broken",
            "1 if a guardrail on this part of the rewards is broken",
            labels=["part"],
        )
        broken: dict[str, bool] = {}
        for guard in bandit.guards.guards:
            broken[guard.rail.part] = broken.get(guard.rail.part, False) or bool(guard.broken)
        for part, is_broken in broken.items():
            stops.add_metric([part], float(is_broken))
        yield stops
        arms = {} if bandit.trial is None else bandit.trial.arms
        for name, text, kind in (
            ("coterie_arm_users", "Users of a trial's arm with a payoff", "users"),
            ("coterie_arm_payoffs", "Payoffs of a trial's arm", "learned"),
            ("coterie_arm_earned", "Sum of payoffs of a trial's arm", "earned"),
        ):
            family = GaugeMetricFamily(name, text, labels=["arm"])
            for arm, sums in arms.items():
                family.add_metric([arm], getattr(sums, kind))
            yield family
        trial = report(bandit.trial, bandit.config, bandit.now)
        low, high = (
            GaugeMetricFamily(
                f"coterie_lift_{end}", "End of a lift's always-valid interval", labels=["arm", "against"]
            )
            for end in ("low", "high")
        )
        for lift in () if trial is None else trial.lifts:
            if lift.difference is not None:
                low.add_metric([lift.arm, lift.against], lift.difference.interval.low)
                high.add_metric([lift.arm, lift.against], lift.difference.interval.high)
        yield from (low, high)
