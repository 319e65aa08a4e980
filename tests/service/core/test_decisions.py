"""The contest of decisions and the load test's bodies, in small."""

import gzip
from pathlib import Path

import msgspec
import pytest

from coterie.bench.service.decisions import (
    GameRound,
    QualityGame,
    coffee,
    food,
    games,
    judge,
    new_lists,
    play,
    play_vw,
    read_ratings,
    repeated_lists,
)
from coterie.bench.service.loadtest import LoadPlan, rank_writer
from coterie.errors import FileError
from coterie.models.features import count
from coterie.policies.vw import SETTINGS
from coterie.service.core.question import Action
from coterie.service.http.routes.decisions import RankBody
from coterie.service.personalizer.bodies import RankIn


def test_scores_by_hand() -> None:
    """Two rounds of two actions: 1 of 2 earned; a random choice loses 0.5 a round, and this one 1 in all.

    With probabilities 0.5 and 0.25 the weights of a uniform choice are 1 and 2: worth (1 + 2)²/(1 + 4)/2 = 0.9.
    """
    rounds = [GameRound("ann", (), [Action("a"), Action("b")], [1.0, 0.0]) for _ in range(2)]
    played = [0, 1], [0.5, 0.25]
    earned = judge(QualityGame("", False, lambda seed: rounds), rounds, played)
    assert earned == pytest.approx((0.5, 0.9))
    assert judge(QualityGame("", True, lambda seed: rounds), rounds, played).value == pytest.approx(1.0)


def test_the_engine_learns_a_coffee_shop() -> None:
    rounds = coffee(0, 1500)
    game = QualityGame("coffee", False, lambda seed: rounds)
    choices, chances = play(rounds, 0)
    assert judge(game, rounds, (choices, chances)).value > 0.4  # chance is 0.25
    assert play(rounds, 0) == (choices, chances)
    assert all(0 < p <= 1 for p in chances)


def test_worlds_are_the_same_for_the_same_seed() -> None:
    for world in (coffee, food):
        assert world(3, 40) == world(3, 40)
        assert world(3, 40) != world(4, 40)


def test_vowpal_wabbit_plays_the_same_rounds() -> None:
    pytest.importorskip("vowpalwabbit")
    rounds = food(0, 60)
    for options in SETTINGS.values():
        choices, chances = play_vw(rounds, 0, options)
        assert len(choices) == 60
        assert all(0 < p <= 1 for p in chances)


def write_ratings(folder: Path) -> Path:
    place = folder / "ml-latest-small"
    place.mkdir()
    movies = "movieId,title,genres\n" + "".join(
        f'{k},"Film {k}, The (199{k % 10})",Drama|War\n' for k in range(12)
    )
    ratings = "userId,movieId,rating,timestamp\n" + "".join(f"7,{k},{3 + k % 2}.5,1\n" for k in range(12))
    with gzip.open(place / "movies.csv.gz", "wt") as file:
        file.write(movies + "99,Without a year,(no genres listed)\n")
    (place / "ratings.csv").write_text(ratings)
    return folder


def test_movielens_is_read_and_cut_into_lists(tmp_path: Path) -> None:
    ratings = read_ratings(write_ratings(tmp_path))
    assert ratings.movies["3"].features == [{"genre": ["Drama", "War"], "decade": "1990s"}]
    assert ratings.movies["99"].features == [{"genre": []}]
    lists = new_lists(ratings, 0, None)
    shown = [action.id for one in lists for action in one.actions]
    assert [len(one.actions) for one in lists] == [5, 5]
    assert len(set(shown)) == 10
    for one in [*lists, *repeated_lists(ratings, 0, 3)]:
        assert list(one.payoffs) == [float(int(action.id) % 2) for action in one.actions]


def test_what_is_not_there_is_told_and_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FileError, match=r"there is no movies.csv in"):
        read_ratings(tmp_path)
    monkeypatch.setenv("COTERIE_DATA", str(tmp_path))
    said: list[str] = []
    names = [game.name for game in games(True, said.append)]
    assert names[-2:] == ["coffee", "food"]
    assert not any("MovieLens" in name for name in names)
    assert any("MovieLens is left out: there is no movies.csv" in text for text in said)


def test_the_load_test_sends_what_it_says() -> None:
    for features in (False, True):
        plan = LoadPlan(features=features)
        native = msgspec.json.decode(rank_writer(plan)(3, "e-1"), type=RankBody)
        other = rank_writer(msgspec.structs.replace(plan, dialect="personalizer"))(3, "e-1")
        compatible = msgspec.json.decode(other, type=RankIn)
        assert (native.user, native.event_id, len(native.actions)) == ("user-3", "e-1", 20)
        assert count(native.context, 1000) == (6 if features else 0)
        assert count([action.features or [] for action in native.actions], 1000) == (100 if features else 0)
        assert [action.id for action in compatible.actions] == [action.id for action in native.actions]
        assert count(compatible.context_features, 1000) == count(native.context, 1000) + 1
        assert rank_writer(plan)(3, "e-1") == rank_writer(plan)(3, "e-1")
