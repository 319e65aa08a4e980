"""The range of numbers in which all arithmetic of the models stays finite.

What enters is brought into it by `checks.py`, `encoded.py`, `features.py` and `files.py`. Within it the updates of
all ridge regressions are finite, because M ≥ I. The hierarchical models check the results of each update before they
change anything.
"""

import numpy as np

from coterie.arrays import Floats

TINY = 1e-20  # a feature's value, or a product of two, that is smaller counts as 0
LARGEST = 1e6  # a larger value of a named feature counts by its logarithm, so at most 7e8
PRODUCT = LARGEST**2  # the largest entry of a vector
LARGEST_PAYOFF = 1e9  # of policies that learn the scale of payoffs
MOST_SET = 1e12  # the largest parameter of a policy
MOST_LEARNED = 1e60  # an update that would make a number of a model larger is refused
MOST_STORED = 1e100  # a model file with a larger number is refused; sums of squares may exceed MOST_LEARNED
MOST_COUNTED = 2**53  # a model file with a larger count is refused: what is added to it must fit
LEAST_STORED = 1e-100  # a smaller number in a model file counts as 0
ROUNDED = 1e-6  # by so much may rounding have changed an eigenvalue
AT_ONCE = 1000  # matrices checked at a time


def are_covariances(matrices: Floats, most: float) -> bool:
    """Return whether symmetric matrices (n, d, d) have no eigenvalue below 0 and no variance above `most`."""
    d = matrices.shape[-1]
    for start in range(0, len(matrices), AT_ONCE):
        part = matrices[start : start + AT_ONCE]
        largest = np.maximum(np.diagonal(part, axis1=1, axis2=2).max(axis=1, initial=0.0), 1.0)
        if not (largest <= most).all():
            return False
        try:
            np.linalg.cholesky(part + ROUNDED * largest[:, None, None] * np.eye(d))
        except np.linalg.LinAlgError:
            return False
    return True
