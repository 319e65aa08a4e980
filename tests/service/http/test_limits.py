"""docs/limits.md names every limit, with the value that the code has."""

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from coterie.data.logs.dsjson import LONGEST_LINE
from coterie.data.logs.rules import Config
from coterie.models import features, ranges
from coterie.models.encoded import LARGEST_ACTION, MOST_CROSSES
from coterie.policies.hierarchical import MOST_SLOTS, SLOTS
from coterie.service import ids
from coterie.service.core import edges, statistics
from coterie.service.evaluations import importance, job_queue, time_series
from coterie.service.files.payoffs import LONGEST_ID
from coterie.service.http import connections, duplicate_names, keys, known_actions, limits
from coterie.service.http.routes import decisions
from coterie.service.http.routes import latest as latest_routes
from coterie.service.personalizer import bodies as personalizer_bodies
from coterie.service.personalizer import configuration, event_batch
from coterie.service.reports import curve, exploring, latest, resemblance
from coterie.service.settings import Settings

DOCS = Path(__file__).parents[3] / "docs"
# What says where, how or by which rules, and limits nothing.
NO_LIMITS = {
    "host", "port", "store", "durability", "engine", "user_path", "tls_certificate", "tls_key",
    "workers", "telemetry", "optimise_days", "log_level", "access_log", "keys", "config", "given", "origins",
    "config.policy", "config.parameters", "config.exploration", "config.explore", "config.default_reward",
    "config.aggregation", "config.mode", "config.record_reasons", "config.holdback", "config.challenger",
    "config.ignored", "config.smallest_lift", "config.caps", "config.budget", "config.payoff", "config.guardrails",
}  # fmt: skip


def most(kind: Any, field: str, name: str = "le") -> Any:
    """Return a bound that a field's type declares."""
    (found,) = [part.type for part in msgspec.structs.fields(kind) if part.name == field]
    text = str(msgspec.json.schema(found))
    return float(re.findall({"le": r"'maximum': ([\d.]+)", "items": r"'maxItems': (\d+)"}[name], text)[0])


def _bound(annotated: Any) -> float:
    return float(annotated.__metadata__[0].le)


FIXED = {
    "characters of an id": ids.LONGEST,
    "levels of nested features": features.DEPTH,
    "crosses of a request": MOST_CROSSES,
    "crosses of one action": LARGEST_ACTION,
    "a reward": most(decisions.RewardBody, "value"),
    "a feature's value, flattened": ranges.LARGEST,
    "the smallest feature's value": ranges.TINY,
    "friends of a user": edges.MOST,
    "a policy's parameter": ranges.MOST_SET,
    "a number in a model file": ranges.MOST_STORED,
    "the smallest number in a model file": ranges.LEAST_STORED,
    "events in one call of Personalizer's `/logs`": event_batch.MOST,
    "policies of an evaluation": job_queue.MOST_POLICIES,
    "automatic evaluations": job_queue.AUTOMATIC,
    "evaluations at a time": job_queue.AT_ONCE,
    "decisions that tell a feature's importance": importance.SAMPLE,
    "points of an evaluation's time series": time_series.POINTS,
    "features with an importance": importance.MOST,
    "seconds between automatic optimisations": configuration.LEAST_FREQUENCY,
    "rewards in one multi-slot call": most(personalizer_bodies.SlotRewardsIn, "reward", "items"),
    "body in which a repeated name is named": duplicate_names.NAMED,
    "clients with a rate": limits.CLIENTS,
    "actions that are remembered as they were sent": known_actions.ROOM,
    "connections for probes": connections.RESERVE,
    "seconds that a connection may be idle": connections.IDLE,
    "seconds in which a balancer notices a stop": connections.DRAIN,
    "minutes of statistics": statistics.KEPT,
    "points of a curve": curve.POINTS,
    "decisions that an estimate must be worth": curve.ENOUGH,
    "decisions that a warning about exploring rests on": exploring.ENOUGH,
    "decisions asked again for their best guess": exploring.ASKED,
    "latest decisions on the page": latest.LATEST,
    "users looked at for likeness": resemblance.SAMPLE,
    "rows of a list": _bound(latest_routes.Limit),
    "ids that a search looks at": latest_routes.SEARCHED,
    "characters of a key": keys.LEAST,
    "characters of a line in dsjson": LONGEST_LINE,
    "characters of an imported id": LONGEST_ID,
}


def rows() -> dict[str, tuple[str, str]]:
    """Return the page's rows: limit, value, and what happens."""
    found = {}
    for line in (DOCS / "limits.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.replace("\\|", "").split("|")]
        if len(cells) == 5 and cells[1] not in ("limit", "---"):
            assert cells[1] not in found, f"{cells[1]} stands twice"
            found[cells[1]] = (cells[2], cells[3])
    return found


def settings() -> dict[str, Any]:
    """Return the settings that limit something, as the page writes them, with their defaults."""
    every = {name: getattr(Settings(), name) for name in Settings.__struct_fields__}
    every |= {f"config.{name}": getattr(Config(), name) for name in Config.__struct_fields__}
    assert every.keys() >= NO_LIMITS
    return {f"`{k.replace('_', '-')}`": v for k, v in every.items() if k not in NO_LIMITS}


def test_every_limit_is_on_the_page_with_its_value() -> None:
    """A new setting fails here until it stands on the page, or among those that limit nothing."""
    found, expected = rows(), {**settings(), **FIXED}
    assert found.keys() == expected.keys()
    for name, (value, beyond) in found.items():
        assert float(value.split()[0]) == float(expected[name]), name
        assert beyond, name


def test_the_page_knows_the_size_of_the_table_and_the_bounds() -> None:
    text = (DOCS / "limits.md").read_text()
    assert f"{SLOTS:,}, at most {MOST_SLOTS:,}" in text
    assert f"at most {most(Settings, 'max_actions'):,.0f} can be set" in text
    assert f"at most {most(Config, 'wait'):,.0f} can be set" in text
    assert f"from 2 to {most(Config, 'dimensions'):,.0f} can be set" in text


@pytest.mark.parametrize("page", ["docs/service.md", "README.md", "SECURITY.md"])
def test_the_page_is_linked(page: str) -> None:
    assert "limits.md" in (DOCS.parent / page).read_text()
