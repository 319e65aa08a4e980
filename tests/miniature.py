"""Miniature data files in the published formats, and the folder of the real ones."""

import os
from pathlib import Path

import numpy as np
import pytest


def real_data(*parts: str) -> Path:
    """Return the folder with real files; skip the test, with the reason, if it does not exist."""
    folder = Path(os.environ.get("COTERIE_DATA") or Path(__file__).parents[1] / "../shared/data").resolve()
    path = folder.joinpath(*parts)
    if not path.exists():
        pytest.skip(f"the real files are not here: {path} does not exist; set COTERIE_DATA")
    return folder


def write(path: Path, header: str, rows: list[tuple[object, ...]], newline: str = "\n") -> None:
    """Write a tab-separated file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [header.replace(" ", "\t"), *("\t".join(map(str, row)) for row in rows)]
    path.write_bytes((newline.join(lines) + newline).encode("latin-1"))


def write_lastfm(folder: Path, n_users: int = 12, n_artists: int = 60, newline: str = "\n") -> None:
    """Write a small LastFM; artists from the 50th on have no tags."""
    rng = np.random.default_rng(7)
    likes = [
        (10 + user, 100 + int(artist), 5)
        for user in range(n_users)
        for artist in rng.choice(n_artists, 8, replace=False)
    ]
    listened = sorted({artist - 100 for _, artist, _ in likes} | set(range(n_artists)))
    likes += [(10, 100 + artist, 1) for artist in listened if artist not in {a - 100 for _, a, _ in likes}]
    tagged = [
        (10 + int(rng.integers(n_users)), 100 + artist, int(tag), 1, 4, 2009)
        for artist in range(50)
        for tag in rng.choice(40, 4, replace=False)
    ]
    tags = [(tag, f"rock_{tag}" if tag % 2 else f"null {tag}") for tag in range(40)]
    place = folder / "lastfm"
    write(place / "user_artists.dat", "userID artistID weight", list(likes), newline)
    write(place / "user_taggedartists.dat", "userID artistID tagID day month year", list(tagged), newline)
    write(place / "tags.dat", "tagID tagValue", list(tags), newline)
    ring = [(10 + user, 10 + (user + 1) % n_users) for user in range(n_users)]
    friends = [*ring, *((b, a) for a, b in ring), (10, 9999), (9999, 10)]  # one of them likes nothing
    write(place / "user_friends.dat", "userID friendID", list(friends), newline)
