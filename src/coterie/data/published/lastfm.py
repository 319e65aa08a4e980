"""LastFM: who listened to which artist, and how artists were tagged (HetRec 2011 Last.fm 2k)."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from coterie.data.files import sha256
from coterie.data.published.hetrec import read_friends, read_published, read_tag_names, tagging_of
from coterie.data.published.labelled import Labelled, Likes

FRIENDS = partial(read_friends, "lastfm", "user_friends.dat", ["userID", "friendID"])


def lastfm(**settings: Any) -> Labelled:
    """Return LastFM: a payoff is 1 if the user ever listened to the artist."""
    return Labelled(name="lastfm", reader=read, friends_reader=FRIENDS, **settings)


def read(folder: Path, verify: bool) -> Likes:
    """Read the likes and the tags. The artists are those with at least one listener: all 17,632."""
    listened, own = read_published("lastfm", "user_artists.dat", folder, verify, ["userID", "artistID"])
    columns = ["userID", "artistID", "tagID"]
    tagged, tag = read_published("lastfm", "user_taggedartists.dat", folder, verify, columns)
    names, name = read_tag_names("lastfm", folder, verify, "tagID", "tagValue")
    artists = np.unique(listened["artistID"])
    tagging = tagging_of(artists, tagged["artistID"], tagged["tagID"], None, names)
    fingerprint = sha256(f"{own}{tag}{name}".encode())[:16]
    return Likes(listened["userID"], listened["artistID"], artists, tagging, fingerprint, True)
