"""Logs with candidate lists: balanced draws, generated twins, and whether replay tells the truth."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coterie.data.logs.lists import draw_lists, thinned
from coterie.data.logs.logged import BLOCK, Logged, from_arrays
from coterie.data.published.open_bandit import open_bandit
from coterie.data.published.twins import TWINS, Twin, twin
from coterie.errors import FileError, ParameterError
from coterie.policies import LinUCB, Random
from coterie.policies.base.batch import Batch
from tests.miniature import real_data

SKEWED = np.array([0.24, 0.2, 0.16, 0.12, 0.1, 0.08, 0.06, 0.04])


def lists_of(draw: str, n_candidates: int = 4) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    items = rng.choice(len(SKEWED), 40_000, p=SKEWED)
    return items, *draw_lists(rng, items, SKEWED, n_candidates, draw)


def test_balanced_lists_serve_every_item_one_time_in_c_of_those_it_is_in() -> None:
    items, lists, place = lists_of("balanced")
    assert (np.sort(lists, axis=1)[:, 1:] != np.sort(lists, axis=1)[:, :-1]).all()
    assert (lists[np.arange(len(items)), place] == items).all()
    listed, served = np.bincount(lists.ravel()), np.bincount(items)
    assert np.abs(served / listed - 1 / 4).max() < 4 * np.sqrt(0.25 * 0.75 / listed.min())


def test_balanced_lists_serve_every_member_of_a_list_equally_often_given_the_list() -> None:
    """The stronger law that replay needs: whatever else is in the list."""
    items, lists, _ = lists_of("balanced")
    pair = (lists == 0).any(axis=1) & (lists == 7).any(axis=1)  # the most and the least served item together
    assert pair.sum() > 1_000
    for item in (0, 7):
        share = (items[pair] == item).mean()
        assert abs(share - 1 / 4) < 4 * np.sqrt(0.25 * 0.75 / pair.sum())


def test_uniform_lists_serve_often_served_items_too_often() -> None:
    items, lists, _ = lists_of("uniform")
    shares = np.bincount(items) / np.bincount(lists.ravel())
    assert shares[0] > 0.35
    assert shares[7] < 0.1


@pytest.mark.parametrize("draw", ["balanced", "uniform"])
def test_served_item_is_at_each_place_equally_often(draw: str) -> None:
    _, _, place = lists_of(draw)
    assert np.abs(np.bincount(place) / len(place) - 1 / 4).max() < 0.01


def test_thinning_leaves_no_item_above_its_share_and_touches_no_other() -> None:
    """Counts 70, 20, 6, 4 with lists of 2: the first must come down to 30, what the others have together."""
    items = np.repeat([0, 1, 2, 3], [70, 20, 6, 4])
    keep = thinned(items, 4, 2)
    assert np.bincount(items[keep]).tolist() == [30, 20, 6, 4]
    assert 5 < keep[:35].sum() < 25  # at random over time, not the first or the last
    with pytest.raises(ParameterError, match="only 4 items are ever served"):
        thinned(items, 4, 5)


SMALL: dict[str, Any] = {"n_users": 60, "n_items": 30, "n_candidates": 5, "n_records": 120_000}


def test_twins_have_the_sizes_of_the_paper() -> None:
    made = {name: twin(name) for name in TWINS}
    sizes = {name: (one.n_users, one.n_items, one.n_candidates) for name, one in made.items()}
    assert sizes == {
        "tuenti": (14_612, 105, 15),
        "kddcup-twin": (10_333, 6_780, 20),
        "avazu-twin": (48_723, 5_099, 20),
    }
    assert all(twin(name).provenance == "generated twin" for name in TWINS)
    assert "not the real data" in twin("tuenti").notes[0]


def test_agreement_of_a_twins_users_depends_on_the_ad() -> None:
    made = Twin(**SMALL)
    pairs = made.groups[:, :, None] == made.groups[:, None, :]  # (families, users, users)
    apart = ~np.eye(60, dtype=bool)
    mixed = pairs.any(axis=0) & ~pairs.all(axis=0) & apart
    assert mixed.sum() > 0.5 * apart.sum()
    users, items, clicks = made.records(0, 120_000)
    for group in range(4):
        chosen = made.groups[items % 5, users] == group
        rate = made.rate(users[chosen], items[chosen])
        assert abs(clicks[chosen].mean() - rate.mean()) < 4 * np.sqrt(rate.mean() / chosen.sum())
    assert abs(clicks.mean() - 0.05) < 0.01


def test_any_part_of_a_log_is_the_same_however_it_is_read() -> None:
    log = twin("tuenti", **SMALL)
    whole = list(log.blocks(120_000, seed=1))
    assert [len(block.users) for block in whole] == [BLOCK, BLOCK, 20_000]
    later = list(log.blocks(110_000, seed=1, start=60_000))
    assert np.array_equal(later[0].candidates, whole[1].candidates[10_000:])
    assert np.array_equal(later[-1].payoffs, whole[2].payoffs[:10_000])
    other = next(log.blocks(1_000, seed=2))
    assert np.array_equal(other.users, whole[0].users[:1_000])  # the log is the same
    assert not np.array_equal(other.candidates, whole[0].candidates[:1_000])  # the lists are not
    assert sum(len(block.users) for block in log.blocks(130_000, seed=1)) == 120_000  # there are no more


def replayed(log: Logged, choose: object, n: int) -> tuple[float, float, int]:
    """Return the click rate of what was kept, of what was chosen by its true rate, and how many were kept."""
    made = Twin(**SMALL)
    paid: list[float] = []
    true: list[float] = []
    for block in log.blocks(n, seed=4):
        rates = made.rate(block.users[:, None], block.candidates)
        choice = choose(rates, block)  # type: ignore[operator]
        kept = choice == block.served
        paid += block.payoffs[kept].tolist()
        true += rates[np.arange(len(choice)), choice].tolist()
    return float(np.mean(paid)), float(np.mean(true)), len(paid)


@pytest.mark.parametrize(
    "choose",
    [
        lambda rates, block: rates.argmax(axis=1),
        lambda rates, block: rates.argmin(axis=1),
        lambda rates, block: block.candidates.argmin(axis=1),
        lambda rates, block: np.zeros(len(rates), dtype=np.int64),
    ],
    ids=["best", "worst", "lowest id", "first listed"],
)
def test_replay_of_any_policy_agrees_with_the_truth(choose: object) -> None:
    """Given list and user the served item is any with equal probability, so what is kept clicks as it should."""
    log = twin("tuenti", **SMALL)
    paid, true, kept = replayed(log, choose, 120_000)
    assert abs(kept - 24_000) < 5 * np.sqrt(24_000)
    assert abs(paid - true) < 4 * np.sqrt(true * (1 - true) / kept)


def test_replay_of_ran_agrees_with_the_mean_click_rate_of_the_log() -> None:
    made, log = Twin(**SMALL), twin("tuenti", **SMALL)
    policy, paid = Random(one_hot=True, seed=1), []
    for block in log.blocks(20_000, seed=0):
        outcome = policy.run(Batch(*block))
        paid += block.payoffs[outcome.kept].tolist()
    visits = np.diff(made._visits, prepend=0)
    users, items = np.arange(60)[:, None], np.arange(30)[None]
    closed = float(visits @ made.rate(users, items) @ made.shares)
    assert abs(np.mean(paid) - closed) < 4 * np.sqrt(closed / len(paid))


def test_replay_on_open_bandit_data_agrees_with_an_independent_estimator() -> None:
    """By the plain definition: keep a record if the policy, trained on the kept ones, picks the logged item."""
    log = open_bandit(folder=real_data("open_bandit_dataset"))
    assert (log.n_items, log.n_rounds, log.n_users, log.provenance) == (80, 10_000, 240, "real, partial")
    fast = LinUCB(one_hot=True, alpha=0.1, shared=True)
    outcome = [fast.run(Batch(*block)) for block in log.blocks(1_500, seed=0)]
    kept = np.concatenate([part.kept for part in outcome])
    slow, found = LinUCB(one_hot=True, alpha=0.1, shared=True), []
    for visit in log.rounds(1_500, seed=0):
        logged = int(np.flatnonzero(~np.isnan(visit.payoffs))[0])
        found.append(slow.choose(visit.user, visit.contexts) == logged)
        if found[-1]:
            slow.learn(visit.user, visit.contexts[logged], float(visit.payoffs[logged]))
    assert found == kept.tolist()
    # A policy that always shows one item: replay must give the mean click of that item's records.
    block = next(log.blocks(10_000, seed=3))
    clicks = {item: [] for item in range(80)}  # type: dict[int, list[float]]
    for t in range(10_000):
        clicks[int(block.candidates[t, block.served[t]])].append(block.payoffs[t])  # type: ignore[index]
    for item in range(80):
        chosen = (block.candidates == item).argmax(axis=1) == block.served
        assert block.payoffs[chosen].tolist() == clicks[item]


def test_open_bandit_logs_of_another_policy_are_refused(tmp_path: Path) -> None:
    header = "n,timestamp,item_id,position,click,propensity_score," + ",".join(
        f"user_feature_{k}" for k in range(4)
    )
    place = tmp_path / "open_bandit_dataset" / "random" / "men"
    place.mkdir(parents=True)
    (place / "men.csv").write_text(header + "\n0,now,1,1,0,0.5,a,b,c,d\n1,now,2,1,0,0.3,a,b,c,d\n")
    with pytest.raises(
        FileError, match=r"line 3: propensity_score is 0.3, expected 0.5 for a uniform policy"
    ):
        open_bandit(folder=tmp_path, campaign="men")


def test_settings_that_cannot_be() -> None:
    with pytest.raises(ParameterError, match="unknown twin 'yahoo'"):
        twin("yahoo")
    with pytest.raises(ParameterError, match="no such setting"):
        twin("tuenti", colour="red")
    with pytest.raises(ParameterError, match="n_items is 10, expected more than the 15 candidates"):
        twin("tuenti", n_items=10)
    with pytest.raises(ParameterError, match="draw is 'fair', expected one of: balanced, uniform, all"):
        twin("tuenti", draw="fair")
    with pytest.raises(
        ParameterError, match=r"served in 75.0% of the records; balanced lists of 2 candidates"
    ):
        Logged(
            name="log",
            described={},
            provenance="real",
            items=[0, 1],
            shares=np.array([0.75, 0.25]),
            n_users=1,
            n_rounds=4,
            records=from_arrays(np.zeros(4), np.zeros(4), np.zeros(4)),
            n_candidates=2,
        )
