"""The quality of decisions: the service's bandit with its defaults against Vowpal Wabbit on the same rounds.

Vowpal Wabbit gets the same information as a request: user and context in the namespace U, the action's id and
features in A.
"""

import csv
import io
import math
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np

from coterie.arrays import JsonObject
from coterie.bench.measuring import Measured
from coterie.data.files import data_folder, find_file, read_bytes
from coterie.data.logs.rules import Config
from coterie.errors import CoterieError, FileError
from coterie.models.features import FeatureObjects as Features
from coterie.models.features import flatten
from coterie.policies.vw import SETTINGS
from coterie.service.core.bandit import Bandit
from coterie.service.core.question import Action, Question

SUITE = "decisions"
EXPLORING = {
    "policy 0.02": Config(),
    "policy 0.05": Config(exploration=0.05),
    "policy 0.1": Config(exploration=0.1),
    "epsilon 0.02": Config(explore="epsilon"),
    "epsilon 0.05": Config(explore="epsilon", exploration=0.05),
    "epsilon 0.1": Config(explore="epsilon", exploration=0.1),
}

Played = tuple[list[int], list[float]]  # choices, and their probabilities


class GameRound(NamedTuple):
    """One request, and the payoff of each action."""

    user: str
    context: Features
    actions: Sequence[Action]
    payoffs: Sequence[float]


class QualityGame(NamedTuple):
    """Rounds, and their measure: the mean payoff, or the regret divided by that of random choices."""

    name: str
    by_regret: bool
    rounds: Callable[[int], list[GameRound]]  # of a seed


class Score(NamedTuple):
    """The result of one player."""

    value: float  # by the game's measure
    worth: float  # the effective sample size for a uniform policy, as a share of the rounds; nan if unknown


class GameResult(NamedTuple):
    """One line: our result, and that of Vowpal Wabbit's best setting."""

    game: str
    by_regret: bool
    ours: float
    rival: float
    setting: str  # of Vowpal Wabbit
    worth: float


def rows(quick: bool, on_progress: Callable[[str], None]) -> Iterator[Measured]:
    """Yield the payoffs of the service's decisions against Vowpal Wabbit's best setting, then ways to explore."""
    for one in results(quick, on_progress):
        unit = "of a random choice's regret" if one.by_regret else "earned a round"
        ours, ratio = one.ours, one.ours / one.rival
        against = f"{one.rival:.3f}, Vowpal Wabbit's best of five ({one.setting})"
        limit = "< 1" if one.by_regret else "> 1"
        holds = None if ratio != ratio else ratio < 1 if one.by_regret else ratio > 1
        yield Measured(SUITE, one.game, ours, unit, against, ratio, limit, holds)
        if one.game == "digits":
            yield Measured(
                SUITE, "digits, right answers", ours, unit, "0.80", ours / 0.8, ">= 1", ours >= 0.8
            )
    for game, way, score in exploring(quick, on_progress):
        unit = "of a random choice's regret" if "MovieLens" in game else "earned a round"
        against = "share of the rounds that the log is worth to evaluate a uniform choice"
        name = f"{game}, exploring by {way}"
        yield Measured(SUITE, name, score.value, unit, against, score.worth, None, None)


def results(quick: bool, on_progress: Callable[[str], None]) -> Iterator[GameResult]:
    """Yield the results of each game; games without data are reported and left out."""
    seeds = range(1 if quick else 3)
    for game in games(quick, on_progress):
        ours = mean_score(game, seeds, play)
        rival, setting = math.nan, "not installed"
        if find_spec("vowpalwabbit") is not None:
            found = {}
            for name, options in SETTINGS.items():
                on_progress(f"{game.name}: Vowpal Wabbit, {name}")
                found[name] = mean_score(game, seeds, partial(play_vw, options=options)).value
            setting = (min if game.by_regret else max)(found, key=lambda name: found[name])
            rival = found[setting]
        yield GameResult(game.name, game.by_regret, ours.value, rival, setting, ours.worth)


def exploring(quick: bool, on_progress: Callable[[str], None]) -> Iterator[tuple[str, str, Score]]:
    """Yield the payoff of ways to explore, and the value of their logs; the default was chosen from this table."""
    seeds = range(1 if quick else 3)
    for game in games(quick, on_progress)[: 1 if quick else 3]:
        for name, config in EXPLORING.items():
            on_progress(f"{game.name}: {name}")
            yield game.name, name, mean_score(game, seeds, partial(play, config=config))


def games(quick: bool, on_progress: Callable[[str], None]) -> list[QualityGame]:
    """Return the games that can be played here."""
    found = []
    if find_spec("sklearn") is None:
        on_progress("digits are left out: scikit-learn is not installed, pip install 'coterie[experiments]'")
    else:
        found.append(QualityGame("digits", False, lambda seed: digits(seed, 1 if quick else 3)))
    try:
        ratings = read_ratings(data_folder())
        new, repeated = (3_000, 3_000) if quick else (None, 40_000)
        found += [
            QualityGame("MovieLens, new lists", True, lambda seed: new_lists(ratings, seed, new)),
            QualityGame(
                "MovieLens, repeated lists", True, lambda seed: repeated_lists(ratings, seed, repeated)
            ),
        ]
    except CoterieError as error:
        on_progress(f"MovieLens is left out: {error}")
    n = 1_500 if quick else 8_000
    found.append(QualityGame("coffee", False, lambda seed: coffee(seed, n)))
    found.append(QualityGame("food", True, lambda seed: food(seed, n)))
    return found


def mean_score(
    game: QualityGame, seeds: Sequence[int], player: Callable[[list[GameRound], int], Played]
) -> Score:
    """Return the mean score of a player over some seeds."""
    scores = []
    for seed in seeds:
        rounds = game.rounds(seed)
        scores.append(judge(game, rounds, player(rounds, seed)))
    return Score(*np.mean(scores, axis=0).tolist())


def judge(game: QualityGame, rounds: Sequence[GameRound], played: Played) -> Score:
    """Return the score of choices and their probabilities."""
    choices, chances = played
    earned = np.array([one.payoffs[k] for one, k in zip(rounds, choices, strict=True)])
    weights = np.array([1 / (len(one.actions) * p) for one, p in zip(rounds, chances, strict=True)])
    worth = float(weights.sum() ** 2 / (weights**2).sum() / len(rounds))
    if not game.by_regret:
        return Score(float(earned.mean()), worth)
    best = np.array([max(one.payoffs) for one in rounds])
    random = np.array([sum(one.payoffs) / len(one.payoffs) for one in rounds])
    return Score(float((best - earned).sum() / (best - random).sum()), worth)


def play(rounds: Sequence[GameRound], seed: int, config: Config | None = None) -> Played:
    """Play through the bandit with immediate rewards; return the choices and their probabilities."""
    bandit = Bandit()
    bandit.configure(config or Config(), 0)
    choices, chances = [], []
    for t, (user, context, actions, payoffs) in enumerate(rounds):
        event = f"{seed}-{t}"
        record: Any = bandit.rank(Question(event, user, actions, context), t)
        bandit.reward(event, payoffs[record.choice], t)
        choices.append(record.choice)
        chances.append(record.probability)
        bandit.drain()
    return choices, chances


def play_vw(rounds: Sequence[GameRound], seed: int, options: str) -> Played:
    """Play with Vowpal Wabbit, drawing from the probabilities it gives."""
    made = import_module("vowpalwabbit").Workspace(f"{options} -b 22 --random_seed 1 --quiet")
    rng = np.random.default_rng(seed)
    lines: dict[int, str] = {}
    choices, chances = [], []
    for user, context, actions, payoffs in rounds:
        shared = f"shared |U u{_word(user)} {_numbers(context)}"
        for action in actions:
            if id(action) not in lines:
                lines[id(action)] = f"|A i{_word(action.id)} {_numbers(action.features or ())}"
        shown = [lines[id(action)] for action in actions]
        likely = made.predict([shared, *shown])
        ends = list(accumulate(likely))
        k = min(bisect_right(ends, rng.random() * ends[-1]), len(shown) - 1)
        label = f"0:{-payoffs[k]}:{likely[k]} "
        made.learn([shared, *(label + line if i == k else line for i, line in enumerate(shown))])
        choices.append(k)
        chances.append(likely[k])
    made.finish()
    return choices, chances


def _word(text: str) -> str:
    return quote(text, safe="")


def _numbers(features: Features) -> str:
    return " ".join(f"{_word(name)}:{value:.6g}" for name, value in flatten(features).items())


def digits(seed: int, passes: int) -> list[GameRound]:
    """Return scikit-learn's digits as rounds: the payoff is 1 for the right digit of ten."""
    data: Any = import_module("sklearn.datasets").load_digits()
    rng = np.random.default_rng(seed)
    actions = [Action(str(k)) for k in range(10)]
    found = []
    for i in np.concatenate([rng.permutation(len(data.data)) for _ in range(passes)]).tolist():
        pixels = {f"pixel {k}": value for k, value in enumerate(data.data[i].tolist()) if value}
        found.append(
            GameRound("(shared)", [pixels], actions, [float(k == data.target[i]) for k in range(10)])
        )
    return found


class RatedMovies(NamedTuple):
    """The movies, and each user's ratings."""

    movies: dict[str, Action]
    by_user: dict[str, list[tuple[str, float]]]  # movie, and 1 for a rating of 4 or more


def read_ratings(folder: Path) -> RatedMovies:
    """Read ml-latest-small: genres and decade are the movies' features."""
    tables = {}
    for name in ("movies.csv", "ratings.csv"):
        path = find_file(folder, ("ml-latest-small",), (name,))
        if path is None:
            raise FileError(f"there is no {name} in {folder / 'ml-latest-small'}")
        tables[name] = list(csv.DictReader(io.StringIO(read_bytes(path).decode("utf-8"))))
    movies = {}
    for row in tables["movies.csv"]:
        year = re.search(r"\((\d{4})\)\s*$", row["title"])
        genres = [genre for genre in row["genres"].split("|") if genre != "(no genres listed)"]
        features: JsonObject = {"genre": genres}
        if year:
            features["decade"] = f"{year[1][:3]}0s"
        movies[row["movieId"]] = Action(row["movieId"], [features])
    by_user: dict[str, list[tuple[str, float]]] = {}
    for row in tables["ratings.csv"]:
        by_user.setdefault(row["userId"], []).append((row["movieId"], float(float(row["rating"]) >= 4)))
    return RatedMovies(movies, by_user)


def new_lists(ratings: RatedMovies, seed: int, most: int | None) -> list[GameRound]:
    """Return each user's movies in lists of 5, each movie once, all lists in random order."""
    rng = np.random.default_rng(seed)
    lists = []
    for user, rated in ratings.by_user.items():
        order = rng.permutation(len(rated)).tolist()
        lists += [(user, [rated[i] for i in order[k : k + 5]]) for k in range(0, len(order) - 4, 5)]
    return [_round(ratings, *lists[i]) for i in rng.permutation(len(lists)).tolist()[:most]]


def repeated_lists(ratings: RatedMovies, seed: int, n: int) -> list[GameRound]:
    """Return lists of 10 of a user's movies, drawn independently each time."""
    rng = np.random.default_rng(seed)
    users = [user for user, rated in ratings.by_user.items() if len(rated) >= 10]
    found = []
    for u in rng.integers(len(users), size=n).tolist():
        rated = ratings.by_user[users[u]]
        found.append(_round(ratings, users[u], [rated[i] for i in rng.permutation(len(rated))[:10].tolist()]))
    return found


def _round(ratings: RatedMovies, user: str, rated: Sequence[tuple[str, float]]) -> GameRound:
    return GameRound(user, (), [ratings.movies[movie] for movie, _ in rated], [paid for _, paid in rated])


def coffee(seed: int, n: int) -> list[GameRound]:
    """Return a world like Personalizer's coffee shop: each user wants one coffee per weather and time of day."""
    rng = np.random.default_rng(seed)
    weathers, times = ("sunny", "rainy", "snowy"), ("morning", "afternoon", "evening")
    names = {"Cappuccino": "hot", "Cold brew": "cold", "Iced mocha": "cold", "Latte": "hot"}
    actions = [
        Action(name, [{"type": kind, "organic": k % 2 == 0}]) for k, (name, kind) in enumerate(names.items())
    ]
    wanted = rng.integers(len(actions), size=(20, 3, 3))
    found = []
    for u, w, t in zip(*(rng.integers(most, size=n) for most in (20, 3, 3)), strict=True):
        payoffs = [float(k == wanted[u, w, t]) for k in range(len(actions))]
        context = [{"weather": weathers[w], "timeOfDay": times[t]}]
        found.append(GameRound(f"user {u}", context, actions, payoffs))
    return found


def food(seed: int, n: int) -> list[GameRound]:
    """Return a world like Personalizer's quickstart: dishes with features, tastes by time of day, device and user."""
    rng = np.random.default_rng(seed)
    dishes: dict[str, JsonObject] = {
        "pasta": {"taste": "salty", "spiceLevel": "medium", "cuisine": "italian"},
        "ice cream": {"taste": "sweet", "spiceLevel": "none", "nutritionLevel": 2},
        "juice": {"taste": "sweet", "spiceLevel": "none", "nutritionLevel": 5, "drink": True},
        "salad": {"taste": "salty", "spiceLevel": "low", "nutritionLevel": 8},
        "curry": {"taste": "salty", "spiceLevel": "high", "cuisine": "indian"},
        "pancakes": {"taste": "sweet", "cuisine": "american"},
        "ramen": {"taste": "salty", "spiceLevel": "medium", "cuisine": "japanese"},
        "burrito": {"taste": "salty", "spiceLevel": "high", "cuisine": "mexican"},
    }
    actions = [Action(name, [features]) for name, features in dishes.items()]
    names = sorted({name for features in dishes.values() for name in flatten([features])})
    x = np.array([[float(name in flatten([dish])) for name in names] for dish in dishes.values()])
    times, devices = ("morning", "afternoon", "evening"), ("mobile", "desktop")
    popular = rng.normal(0, 0.3, len(actions))
    by_time, by_device = rng.normal(0, 0.7, (3, len(names))), rng.normal(0, 0.4, (2, len(names)))
    by_user, own = rng.normal(0, 0.7, (200, len(names))), rng.normal(0, 0.3, (200, len(actions)))
    found = []
    for u, t, d in zip(*(rng.integers(most, size=n) for most in (200, 3, 2)), strict=True):
        logit = -1.2 + popular + own[u] + x @ (by_time[t] + by_device[d] + by_user[u])
        payoffs = (rng.random(len(actions)) < 1 / (1 + np.exp(-logit))).astype(float).tolist()
        context = [{"timeOfDay": times[t], "device": {"kind": devices[d]}}]
        found.append(GameRound(f"user {u}", context, actions, payoffs))
    return found
