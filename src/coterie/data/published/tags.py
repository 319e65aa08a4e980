"""Item vectors from tags: tf-idf, then the first principal components, scaled to norms of at most 1."""

import re
from typing import Any, NamedTuple

import numpy as np

from coterie.arrays import Floats, Ints
from coterie.data.files import check_choice, need
from coterie.errors import ParameterError

SCALES = ("largest", "unit")
TAGS = ("whole", "words")
# Features are rounded to this many decimals, so that the last bits of another machine change no choice.
DECIMALS = 9
SEPARATORS = re.compile(r"[\W_]+")


class Tagging(NamedTuple):
    """How often each item was given each tag: three arrays of the same length, and the tags' names."""

    items: Ints  # positions of items, from 0
    tags: Ints  # tag ids
    counts: Floats
    names: dict[int, str]  # of tag ids


def features(
    tagging: Tagging, n_items: int, *, components: int, centre: bool, scale: str, tags: str
) -> Floats:
    """Return a vector for each item: (n_items, components), rounded, each of norm at most 1.

    `centre` subtracts the mean first, as in principal component analysis; without it the components are the
    right singular vectors of the tf-idf matrix. `scale="largest"` divides all vectors by the largest norm,
    "unit" each by its own (zero vectors stay). `tags="words"` splits tags into words first.
    """
    check_choice("scale", scale, SCALES)
    check_choice("tags", tags, TAGS)
    text = need("sklearn.feature_extraction.text", "preparing items from tags")
    decomposition = need("sklearn.decomposition", "preparing items from tags")
    counted = _counted(tagging, n_items, tags)
    if not 1 <= components < min(counted.shape):
        raise ParameterError(
            f"components is {components}, expected from 1 to {min(counted.shape) - 1}: there are "
            f"{counted.shape[0]:,} items with {counted.shape[1]:,} tags"
        )
    weighted = text.TfidfTransformer().fit_transform(counted)
    if centre:
        reduce = decomposition.PCA(components, svd_solver="arpack", random_state=0)
    else:
        reduce = decomposition.TruncatedSVD(components, algorithm="arpack", random_state=0)
    vectors = np.asarray(reduce.fit_transform(weighted), dtype=np.float64)
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    by = norms.max() if scale == "largest" else np.where(norms > 0, norms, 1.0)
    room = 1 + components * 10.0**-DECIMALS  # rounding must not raise a norm above 1
    return np.asarray(np.round(vectors / (by * room), DECIMALS) + 0.0, dtype=np.float64)  # + 0.0: no -0.0


def _counted(tagging: Tagging, n_items: int, tags: str) -> Any:
    """Return how often each item was given each tag, or each word of a tag: a sparse (n_items, n_tags)."""
    sparse = need("scipy.sparse", "preparing items from tags")
    used, column = np.unique(tagging.tags, return_inverse=True)
    counted = sparse.csr_matrix((tagging.counts, (tagging.items, column)), shape=(n_items, len(used)))
    if tags == "whole":
        return counted
    vocabulary: dict[str, int] = {}
    pairs = [  # a tag counts once for each of its words
        (row, vocabulary.setdefault(word, len(vocabulary)))
        for row, tag in enumerate(used)
        for word in dict.fromkeys(split(tagging.names[int(tag)]))
    ]
    words = sparse.csr_matrix((np.ones(len(pairs)), tuple(zip(*pairs, strict=True))))
    return (counted @ words).sorted_indices()


def split(tag: str) -> list[str]:
    """Return the words of a tag in lower case; a tag without letters or digits is one word."""
    return [word for word in SEPARATORS.split(tag.lower()) if word] or [tag]
