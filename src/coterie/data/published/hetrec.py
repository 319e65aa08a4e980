"""Reads the HetRec 2011 files: tab-separated, tags in Latin-1, checked by their hashes."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from coterie.arrays import Floats, Ints
from coterie.data.files import sha256
from coterie.data.published.catalogue import read_known
from coterie.data.published.large_files import Layout, parse, refuse
from coterie.data.published.tags import Tagging
from coterie.errors import FileError


def read_published(
    dataset: str, name: str, folder: Path, verify: bool, columns: Sequence[str]
) -> tuple[dict[str, Ints], str]:
    """Return some columns of a file, and the hash of its content."""
    path, content = read_known(dataset, name, folder, verify)
    header = content.partition(b"\n")[0].decode("latin-1").split("\t")
    missing = [name for name in columns if name not in header]
    if missing:
        raise FileError(
            f"{path}, line 1: no column {missing[0]!r}, found {', '.join(header)[:120]}; "
            "this is not the file it is named for"
        )
    n_lines = content.count(b"\n") + (not content.endswith(b"\n"))
    is_even = content.count(b"\t") == n_lines * (len(header) - 1)  # a short line has fewer tabs
    layout, numbers = Layout("\t", header, True), dict.fromkeys(columns, "number")
    table = parse(path, content, 1, layout, numbers)
    if not is_even:
        refuse(path, content, 1, layout, numbers)
    if not len(table):
        raise FileError(f"{path} holds no rows; it was cut short, fetch it again")
    return {name: table[name].to_numpy() for name in columns}, sha256(content)


def read_friends(
    dataset: str, name: str, columns: Sequence[str], folder: Path, verify: bool
) -> list[tuple[int, int]]:
    """Return the pairs of users that a file lists."""
    table, _ = read_published(dataset, name, folder, verify, columns)
    first, second = (column.tolist() for column in table.values())
    return list(zip(first, second, strict=True))


def read_tag_names(
    dataset: str, folder: Path, verify: bool, key: str, value: str
) -> tuple[dict[int, str], str]:
    """Return the tags' names by id, and the hash of the file. A tag may read "null"."""
    path, content = read_known(dataset, "tags.dat", folder, verify)
    first, *lines = content.decode("latin-1").rstrip("\n").split("\n")
    if first.split("\t") != [key, value]:
        raise FileError(f"{path}, line 1: {first[:80]!r}, expected {key} and {value}, separated by a tab")
    names: dict[int, str] = {}
    for number, line in enumerate(lines, 2):
        tag, tab, text = line.partition("\t")
        if not tab or not tag.isdecimal():
            raise FileError(f"{path}, line {number}: {line[:80]!r}, expected a whole number, a tab and a tag")
        names[int(tag)] = text
    return names, sha256(content)


def tagging_of(
    item_ids: Ints, tagged: Ints, tags: Ints, counts: Floats | None, names: dict[int, str]
) -> Tagging:
    """Return the tags of known items; tags on other items and tags without a name are left out."""
    place = np.minimum(np.searchsorted(item_ids, tagged), len(item_ids) - 1)
    known = (item_ids[place] == tagged) & np.isin(tags, np.fromiter(names, dtype=np.int64))
    counts = np.ones(len(tagged)) if counts is None else counts
    return Tagging(place[known], tags[known], counts[known], names)
