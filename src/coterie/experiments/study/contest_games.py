"""The games of the contest: which data, and who plays.

All players see the same rounds in five runs. A rival is tuned on the first fifth of the first run's rounds: of the
values in its grid, the same number of settings is drawn for each. Hierarchical plays with its defaults, and VW with
the best of its five settings in hindsight.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from coterie.data.datasets import Source
from coterie.errors import CoterieError
from coterie.experiments.run.runs import FRIENDS, Run
from coterie.experiments.run.specs import Spec, defaults, parse_spec

N_SETTINGS = 10  # of each rival in tuning
PLAYERS = (
    "hierarchical,vw,cab,club,sclub,dynucb,linucb-single,linucb-multiple,cofiba,dccb,"
    "locb,bass,m-cnb,hier-ts,gob-lin:graph=friends,random"
)
# These see features or ids; where there are both, the better counts.
EITHER = ("cab", "club", "sclub", "dynucb", "linucb-single", "linucb-multiple")
TWINS = ("tuenti", "kddcup-twin", "avazu-twin")
VECTORS = "it is for vectors, and these data have too many ids for unit vectors"
NOT_ON_TWINS = {
    "vw": "its five settings take 25 minutes for 300,000 records, and hours for all",
    "sclub": "it takes hours on millions of records",
    "cofiba": "it takes days on millions of records",
    "dccb": "it moves every user's numbers with every record: up to 30 ms each, or more memory than there is",
    "dynucb": "its cost grows with clusters and ids, so it was not played on the largest twin",
    "sparse-cab": "it is for features",
    **dict.fromkeys(("locb", "bass", "m-cnb", "hier-ts"), VECTORS),
}


SLOW = "it takes more than four minutes of processor time here, so it plays only if it is named"
NOT_ITS_GAME = {"sparse-cab": "it is for many features of which few matter to a user"}
NO_FRIENDS = {"gob-lin": "these data have no friendships"}
WITH_FRIENDS = {"gob-lin": "it is given friendships, so it plays in the line with friends"}
BEFRIENDED = ("lastfm", "delicious")
# On the other games without users these had LinUCB's results, to the last digit.
LIKE_LINUCB = dict.fromkeys(
    ("cab", "club", "sclub", "dynucb", "cofiba"), "without users it chooses as LinUCB does"
)


class ContestGame(NamedTuple):
    """One line of the contest."""

    data: str  # a dataset or a built-in world
    settings: Mapping[str, Any] = {}
    n_rounds: int | None = None  # only the first ones; all, if None
    is_long: bool = False  # takes hours, so it is played only if it is named
    too_slow: tuple[str, ...] = ()  # who plays only if named: more than four minutes of processor time


SHORT = (
    "camera", "bank", "margarine", "electricity", "swissmetro", "insteval", "ta-feng", "movielens",
    "movielens-repeat", "movielens-100k", "movielens-groups", "movielens-locb", "cancer", "wine", "iris", "prompts",
    "open-bandit", "music-and-news", "dense", "lonely",
)  # fmt: skip
LONG = ("lastfm", "delicious", "digits", *TWINS)
GAMES: dict[str, ContestGame] = {
    **{name: ContestGame(name) for name in SHORT},
    "bank": ContestGame("bank", too_slow=("m-cnb", "dccb")),
    "insteval": ContestGame("insteval", too_slow=("m-cnb", "dccb")),
    "ta-feng": ContestGame("ta-feng", n_rounds=10_000, too_slow=("m-cnb",)),
    "movielens": ContestGame("movielens", too_slow=("m-cnb", "bass", "cofiba")),
    "movielens-repeat": ContestGame("movielens-repeat", too_slow=("m-cnb", "bass", "locb", "cofiba", "dccb")),
    "movielens-100k": ContestGame("movielens-100k", too_slow=("m-cnb", "bass")),
    **{
        name: ContestGame(name, too_slow=("m-cnb",))
        for name in ("movielens-groups", "movielens-locb", "open-bandit", "music-and-news", "dense", "lonely")
    },
    **{name: ContestGame(name, is_long=True) for name in LONG},
    "digits": ContestGame(
        "digits", is_long=True, too_slow=("locb", "bass", "m-cnb", "hier-ts", "dccb")
    ),  # vectors of 650 features
    **{
        f"{name}{suffix}": ContestGame(
            name, settings, is_long=True, too_slow=("bass", "m-cnb", "cofiba", "dccb")
        )
        for name in ("lastfm", "delicious")
        for suffix, settings in (("", {}), ("-pool", {"pool": "all"}))
    },
}


def why_not_played(dataset: str) -> dict[str, str]:
    """Return who does not play a dataset because of what it is, with the reason, by name."""
    found = NOT_ITS_GAME | (WITH_FRIENDS if dataset in BEFRIENDED else NO_FRIENDS)
    if dataset in TWINS:
        return found | NOT_ON_TWINS
    if dataset == "digits":
        found |= LIKE_LINUCB
    return found | dict.fromkeys(GAMES[dataset].too_slow, SLOW) if dataset in GAMES else found


def players(
    specs: Sequence[Spec], place: Source, too_slow: Sequence[str] = (), seed: int = 0
) -> tuple[list[Spec], dict[str, str]]:
    """Return those who can play these data, and for the others why not, by name.

    If items have features and ids, who can see one of them only plays with each. If there are friendships, who can do
    without them also plays on features alone, and on features with them.
    """
    able, why_not = list[Spec](), dict.fromkeys(too_slow, SLOW)
    known = {} if hasattr(place, FRIENDS) else NO_FRIENDS
    specs = [spec for spec in specs if spec.text.split(":")[0] not in too_slow]
    has_both = place.n_features is not None and place.has_ids
    has_both = has_both and not place.has_contexts  # there, ids say nothing of the example
    also = [parse_spec(f"{spec.text}:items=ids") for spec in specs if has_both and spec.text in EITHER]
    if hasattr(place, FRIENDS):
        views = ("items=features", f"items=features:{FRIENDS}={FRIENDS}")
        takers = [spec for spec in specs if FRIENDS in defaults(spec.name)]
        also += [parse_spec(f"{spec.text}:{view}") for spec in takers for view in views]
    for spec in [*specs, *also]:
        name, why = spec.text.split(":")[0], why_unable(spec, place, seed)
        if why is None:
            able.append(spec)
        else:
            why_not[name] = known.get(name, why)
    return able, why_not


def why_unable(spec: Spec, place: Source, seed: int) -> str | None:
    """Return why a policy cannot play these data, such as that it needs a graph; None if it can."""
    try:
        Run.of(spec, place, seed, 1).make_policy()
    except CoterieError as error:
        return str(error)
    return None
