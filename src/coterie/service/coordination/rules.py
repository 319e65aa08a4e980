"""The rules of a start: those that its settings name, and for the rest those that the log has."""

from typing import Any

import msgspec

from coterie.data.logs.rules import Config
from coterie.service.core.bandit import Bandit
from coterie.service.core.policy_config import check_config
from coterie.service.settings import Settings, starting_config

# Keys of `Bandit.contract`: how often to optimise automatically, and a change of the retention.
OPTIMISATION = ("is_auto_optimization_enabled", "auto_optimization_frequency", "auto_optimization_start_date")
RETENTION = "log_retention_days"


def first_rules(settings: Settings, bandit: Bandit, engine: Any) -> tuple[Config, dict[str, Any]]:
    """Return the configuration and the contract that a start begins with."""
    contract = dict(bandit.contract)
    if RETENTION in contract and settings.names("retention_days"):
        del contract[RETENTION]
    if settings.names("optimise_days"):
        contract = {name: value for name, value in contract.items() if name not in OPTIMISATION}
    config = starting_config(settings, bandit.config)
    if engine is not None:
        if bandit.position == 0 and not settings.names("config.policy"):
            config = msgspec.structs.replace(config, policy="cab")  # the default cannot be kept on a device
        check_config(config, engine)
    return config, contract


def retention_days(settings: Settings, bandit: Bandit) -> float:
    """Return how long the log is kept: as last set, at the start or since."""
    return float(bandit.contract.get(RETENTION, settings.retention_days))
