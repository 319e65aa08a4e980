"""Delicious: who bookmarked which URL, and how URLs were tagged (HetRec 2011 Delicious 2k).

If the published files are missing, a partial reconstruction is read, and results say so: 97,351 of the 104,799
likes, tags without counts, and an inferred link from tags to URLs.
"""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from coterie.arrays import Ints
from coterie.data.files import find_file, sha256
from coterie.data.published.catalogue import source
from coterie.data.published.hetrec import read_friends, read_published, read_tag_names, tagging_of
from coterie.data.published.labelled import Labelled, Likes

CONTACTS = partial(read_friends, "delicious", "user_contacts-timestamps.dat", ["userID", "contactID"])


def delicious(**settings: Any) -> Labelled:
    """Return Delicious: a payoff is 1 if the user bookmarked the URL."""
    return Labelled(name="delicious", reader=read, friends_reader=CONTACTS, **settings)


def read(folder: Path, verify: bool) -> Likes:
    """Read the likes and the tags, from the published files if they exist, else from the partial ones."""
    places = source("delicious").places
    partial = find_file(folder, places, ["user_bookmarks_partial.tsv"])
    published = find_file(folder, places, ["user_taggedbookmarks.dat"])
    return _read_partial(folder, verify) if published is None and partial else _read_whole(folder, verify)


def _read_whole(folder: Path, verify: bool) -> Likes:
    columns = ["userID", "bookmarkID", "tagID"]
    marked, own = read_published("delicious", "user_taggedbookmarks.dat", folder, verify, columns)
    columns = ["bookmarkID", "tagID", "tagWeight"]
    tagged, tag = read_published("delicious", "bookmark_tags.dat", folder, verify, columns)
    names, name = read_tag_names("delicious", folder, verify, "id", "value")
    urls = np.union1d(marked["bookmarkID"], tagged["bookmarkID"])
    weights = tagged["tagWeight"].astype(np.float64)
    tagging = tagging_of(urls, tagged["bookmarkID"], tagged["tagID"], weights, names)
    fingerprint = sha256(f"{own}{tag}{name}".encode())[:16]
    return Likes(marked["userID"], marked["bookmarkID"], urls, tagging, fingerprint, True)


def _read_partial(folder: Path, verify: bool) -> Likes:
    def columns(file: str, *names: str) -> tuple[dict[str, Ints], str]:
        return read_published("delicious", file, folder, verify, names)

    marked, own = columns("user_bookmarks_partial.tsv", "userID", "bookmarkID")
    tagged, tag = columns("bookmark_tags_noweight.tsv", "itemRow", "tagID")
    index, link = columns("bookmark_index.tsv", "itemRow", "bookmarkID")
    names, named = read_tag_names("delicious", folder, verify, "id", "value")
    # A URL without a published id has no known likes: it gets a negative id.
    row, published = index.values()
    of_row = np.zeros(int(row.max()) + 1, dtype=np.int64)
    of_row[row] = np.where(published < 0, -1 - row, published)
    urls = np.union1d(of_row, marked["bookmarkID"])
    tagging = tagging_of(urls, of_row[tagged["itemRow"]], tagged["tagID"], None, names)
    fingerprint = sha256(f"{own}{tag}{link}{named}".encode())[:16]
    return Likes(marked["userID"], marked["bookmarkID"], urls, tagging, fingerprint, False)
