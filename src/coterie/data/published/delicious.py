"""Delicious: who bookmarked which URL, and how URLs were tagged (HetRec 2011 Delicious 2k).

If the published files are missing, a partial reconstruction is read, and results say so: 97,351 of the 104,799
likes, tags without counts, and an inferred link from tags to URLs.
"""

from pathlib import Path
from typing import Any

import numpy as np

from coterie.data.files import find_file, sha256
from coterie.data.published.catalogue import source
from coterie.data.published.hetrec import read_friends, read_published, read_tag_names, tagging_of
from coterie.data.published.labelled import Labelled, Likes

CONTACTS = read_friends("delicious", "user_contacts-timestamps.dat", ["userID", "contactID"])


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
    urls = np.union1d(marked["bookmarkID"].to_numpy(), tagged["bookmarkID"].to_numpy())
    weights = tagged["tagWeight"].to_numpy().astype(np.float64)
    tagging = tagging_of(urls, tagged["bookmarkID"].to_numpy(), tagged["tagID"].to_numpy(), weights, names)
    users, items = marked["userID"].to_numpy(), marked["bookmarkID"].to_numpy()
    return Likes(users, items, urls, tagging, sha256("".join([own, tag, name]).encode())[:16], True)


def _read_partial(folder: Path, verify: bool) -> Likes:
    name = "user_bookmarks_partial.tsv"
    marked, own = read_published("delicious", name, folder, verify, ["userID", "bookmarkID"])
    name = "bookmark_tags_noweight.tsv"
    tagged, tag = read_published("delicious", name, folder, verify, ["itemRow", "tagID"])
    name = "bookmark_index.tsv"
    index, link = read_published("delicious", name, folder, verify, ["itemRow", "bookmarkID"])
    names, named = read_tag_names("delicious", folder, verify, "id", "value")
    # A URL without a published id has no known likes: it gets a negative id.
    row, published = index["itemRow"].to_numpy(), index["bookmarkID"].to_numpy()
    of_row = np.zeros(int(row.max()) + 1, dtype=np.int64)
    of_row[row] = np.where(published < 0, -1 - row, published)
    users, items = marked["userID"].to_numpy(), marked["bookmarkID"].to_numpy()
    urls = np.union1d(of_row, items)
    tagging = tagging_of(urls, of_row[tagged["itemRow"].to_numpy()], tagged["tagID"].to_numpy(), None, names)
    fingerprint = sha256("".join([own, tag, link, named]).encode())[:16]
    return Likes(users, items, urls, tagging, fingerprint, False)
