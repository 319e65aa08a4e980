"""Changing the rules: another policy first learns what the log holds, while the old one still decides."""

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from coterie.data.logs.records import Record
from coterie.data.logs.rules import Config
from coterie.service.coordination.sequencer import Sequencer
from coterie.service.core.bandit import Bandit, models_to_learn
from coterie.service.core.policy_config import same_model
from coterie.service.problems import Problem
from coterie.service.snapshots.recovery import relearn

FEW = 100  # records that a bandit may catch up with in one turn


async def configure(sequencer: Sequencer, config: Config, contract: Mapping[str, Any] | None = None) -> None:
    """Change the rules from here on."""

    def change() -> bool:
        bandit = sequencer.bandit
        if models_to_learn(bandit, config):
            return False
        bandit.configure(config, sequencer.clock(), contract)
        return True

    if not (await sequencer.write(change)).value:
        sequencer.bandit.check(config, sequencer.engine)
        if sequencer.bandit.tap is not None:
            raise Problem(409, "busy", "another policy is learning the log already; wait for it")
        # A user who is scrubbed from the log meanwhile would have two names in what is learned.
        async with sequencer.lease:
            await _relearn(sequencer, sequencer.bandit, config, contract)


async def _relearn(
    sequencer: Sequencer, bandit: Bandit, config: Config, contract: Mapping[str, Any] | None
) -> None:
    """Let bandits with other models learn the log, then the records since, and take over their models."""
    # Users who are forgotten from here on are not among these.
    users = await asyncio.to_thread(sequencer.store.scrubs)
    end = await sequencer.do(lambda: _listen(bandit))
    usual = bandit.relearn
    assert usual is not None  # it reads the log when the rules are in force
    try:
        wanted = models_to_learn(bandit, config)
        learn = partial(
            relearn, sequencer.store, end=end, engine=sequencer.engine, users=users, log=sequencer.log
        )
        others = [await asyncio.to_thread(learn, config=model) for model in wanted]
        while len(bandit.tap or ()) > FEW:
            heard = await sequencer.do(lambda: _heard(bandit))
            await asyncio.to_thread(_catch_up, others, heard)

        def take_over() -> None:
            if bandit is not sequencer.bandit:
                raise Problem(503, "not_accepting", "the service read its log again; try again", 1)
            if models_to_learn(bandit, config) != wanted:
                raise Problem(409, "busy", "the rules were changed meanwhile; try again")
            bandit.configure(config, sequencer.clock(), contract)

        left = list(zip(wanted, others, strict=True))
        caught_up = False

        def give(model: Config) -> Bandit:
            """Return a bandit that learned all before the change of the rules, which is being applied."""
            nonlocal caught_up
            if not caught_up:
                _catch_up(others, _heard(bandit))
                caught_up = True
            return _give(left, model) or usual(model)

        bandit.relearn = give
        await sequencer.write(take_over, long=True)
    finally:
        bandit.tap, bandit.relearn = None, usual


def _listen(bandit: Bandit) -> int:
    """Collect new records in the bandit's `tap` from here on, and return where they begin."""
    bandit.tap = []
    return bandit.position


def _heard(bandit: Bandit) -> list[Record]:
    """Return the records that were collected since the last call."""
    heard, bandit.tap = bandit.tap or [], []
    return heard


def _catch_up(bandits: Sequence[Bandit], records: Sequence[Record]) -> None:
    for bandit in bandits:
        for record in records:
            bandit.apply(record)
        bandit.drain()


def _give(learned: list[tuple[Config, Bandit]], model: Config) -> Bandit | None:
    """Return a bandit that learned with a model, if there is one; each only once: two arms must not share one."""
    found = (k for k, (asked, _) in enumerate(learned) if same_model(asked, model) == asked)
    k = next(found, None)
    return None if k is None else learned.pop(k)[1]
