"""Quantiles of histograms."""

import doctest
import math

from hypothesis import example, given
from hypothesis import strategies as st

from coterie.service.reports import latency


@given(st.lists(st.floats(0.0001, 20), min_size=1, max_size=50), st.sampled_from([0.5, 0.9, 0.99]))
@example([1.0, 0.0078125], 0.5)  # 0.001 + 0.009 is more than 0.01
def test_a_quantile_lies_in_the_right_bucket(seconds: list[float], share: float) -> None:
    limits = [0.001, 0.01, 0.1, 1.0, 10.0, math.inf]
    bounds = [(limit, float(sum(s <= limit for s in seconds))) for limit in limits]
    found = latency.quantile(bounds, share)
    true = sorted(seconds)[math.ceil(share * len(seconds)) - 1]
    upper = next(limit for limit in limits if true <= limit)
    lower = max([0.0, *(limit for limit in limits if limit < true)])
    assert found is not None
    assert lower <= found <= upper


def test_there_is_no_quantile_of_nothing() -> None:
    assert latency.quantile([], 0.5) is None
    assert latency.quantile([(1.0, 0.0), (math.inf, 0.0)], 0.5) is None


def test_the_docstrings_examples_run() -> None:
    assert doctest.testmod(latency).failed == 0
