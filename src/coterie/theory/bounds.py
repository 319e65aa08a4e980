"""The paper's guarantees as functions: each states its formula and assumptions, and rejects other input.

paper                       here
Theorem 1                   theorem_1, and `regret_bound` with proved constants
Lemma 1 (hardness)          lemma_1, and `hardness_bound`, which is proved
Lemma 2 (Σ 1/|N|)           lemma_2
Lemma 3 (confidence, α(t))  confidence
Corollary 1                 corollary_1
Theorem 3 (sparse)          theorem_3
"""

import math
from collections.abc import Callable
from typing import Literal, NamedTuple, TypedDict, Unpack

from coterie.errors import ParameterError
from coterie.models.checks import check_count, check_number


class Terms(NamedTuple):
    """A regret bound in two terms: the loss before the data suffice, and the part that grows with time."""

    start: float
    growth: float

    @property
    def total(self) -> float:
        """The bound."""
        return self.start + self.growth


def confidence(
    t: int,
    *,
    n_features: int,
    n_users: int,
    delta: float,
    noise: float = 1.0,
    length: float = 1.0,
    norm: float = 1.0,
    ridge: float = 1.0,
    form: Literal["printed", "determinant"] = "determinant",
) -> float:
    """Return α(t) of Lemma 3: with it, |u_j·x - w_j·x| ≤ α(t)·√(xᵀM⁻¹x) for all users, x and t at once.

    printed       σ·√(d·log((1 + t·L²/λ)·n/δ)) + √λ·S
    determinant   σ·√(d·log(1 + t·L²/(d·λ)) + 2·log(n/δ)) + √λ·S

    Both are Theorem 2 of Abbasi-Yadkori, Pál and Szepesvári (2011), at confidence δ/n for a union over n users:
    the first its second display, the second its first display with the determinant bounded by the trace.
    The first follows from the second only for d ≥ 2 (d·log(n/δ) must be at least 2·log(n/δ)), so d = 1 is rejected.

    Assumes payoffs u_j·x + ε with ε conditionally zero-mean and σ-sub-Gaussian (`noise`; payoffs in [-1, 1] have
    σ = 1, by Hoeffding's lemma), ‖x‖ ≤ L (`length`), ‖u_j‖ ≤ S (`norm`), M starting at λI (`ridge`).
    A user may learn from others' payoffs, as in CAB, if their expectation equals the user's own. That holds
    until the bound first fails: two users with bounds below γ/4 in one estimated neighbourhood are γ-close.

    >>> round(confidence(100, n_features=2, n_users=1, delta=0.05, form="printed"), 3)
    4.902
    """
    check_count("t", t), check_count("n_features", n_features), check_count("n_users", n_users)
    _check_delta(delta)
    for name, value in (("noise", noise), ("length", length), ("norm", norm)):
        check_number(name, value)
    _check_positive("ridge", ridge)
    growth, doubt = t * length**2 / ridge, math.log(n_users / delta)
    if form == "printed":
        if n_features < 2:
            raise ParameterError('the printed form is not proved for n_features=1; use form="determinant"')
        width = n_features * (math.log1p(growth) + doubt)
    elif form == "determinant":
        width = n_features * math.log1p(growth / n_features) + 2 * doubt
    else:
        raise ParameterError(f'form is {form!r}, expected "printed" or "determinant"')
    return noise * math.sqrt(width) + math.sqrt(ridge) * norm


def theorem_1(
    *,
    alpha: float,
    n_rounds: int,
    n_users: int,
    n_features: int,
    n_candidates: int,
    hardness: float,
    inverse_sizes: float,
) -> Terms:
    """Return Theorem 1's bound on CAB's regret, as printed, as two terms.

        9α·( c·n·HD(16α²/γ²)  +  √(d·log T·Σ_t n/|N_{i_t}(x̄_t)|) )

    `alpha` is α(T), `hardness` HD at level 16α(T)²/γ² (or any upper bound on it), `inverse_sizes` Σ_t 1/|N|.
    Assumes the confidence condition, the γ-gap, ‖u‖ = 1 and an α(t) that never decreases.

    The proof's constant is 8α + 4, which is at most 9α only from α = 4 on, and it counts HD rounds where HD +
    1 can be unsure (the matrix of round t is that of t - 1). The bound still holds for T ≥ 2 and α ≥ 1, by
    `regret_bound`: the loss of a round is at most 2. At T = 1 the bound is 0, so T = 1 is rejected; so is α <
    1, for which the confidence condition cannot hold at the start, where w = 0, M = I and ‖u‖ = 1.
    """
    _check_run(alpha, n_rounds, n_users, n_features, hardness, inverse_sizes)
    check_count("n_candidates", n_candidates)
    if n_rounds < 2:
        raise ParameterError("n_rounds is 1, for which Theorem 1's bound is 0; expected at least 2")
    return Terms(
        9 * alpha * n_candidates * n_users * hardness,
        9 * alpha * math.sqrt(n_features * math.log(n_rounds) * n_users * inverse_sizes),
    )


def regret_bound(
    *,
    alpha: float,
    n_rounds: int,
    n_users: int,
    n_features: int,
    hardness: float,
    inverse_sizes: float,
    largest_loss: float = 2.0,
) -> Terms:
    """Return a bound with Theorem 1's assumptions and smaller constants, without c, n or α in its first term.

        L·min(T, HD + 1)  +  2α·√(2d·log(1 + T/d)·Σ_t n/|N_{i_t}(x̄_t)|)

    Proof. Round t is unsure if some CB_{j,t-1}(x_{t,k}) ≥ γ/4. Then λ_min(M_{j,t-1}) ≤ 16α(T)²/γ², and as M_{j,t-1}
    contains all of j's own rounds up to t - 1, HD ≥ t - 1 (or t = 1): at most HD + 1 rounds are unsure, and each
    loses at most L = 2 (`largest_loss`; 1 if expected payoffs are in [0, 1]). In all others N̂ = N for every
    candidate, so r_t ≤ 2·CB_N(x̄_t) and exactly N is updated; Cauchy-Schwarz, the log-determinant bound and
    det M ≤ (1 + T/d)^d give the second term as in the paper. ∎
    """
    _check_run(alpha, n_rounds, n_users, n_features, hardness, inverse_sizes)
    _check_positive("largest_loss", largest_loss)
    spread = 2 * n_features * math.log1p(n_rounds / n_features) * n_users * inverse_sizes
    return Terms(largest_loss * min(n_rounds, hardness + 1), 2 * alpha * math.sqrt(spread))


def lemma_1(
    *,
    eta: float,
    least_eigenvalue: float,
    variance: float,
    n_candidates: int,
    n_rounds: int,
    n_users: int,
    n_features: int,
    delta: float,
) -> float:
    """Return Lemma 1's bound on HD, with the constants of its proof sketch.

        D(x*),   D(x) = 2n·(x + (5/3)·log(Tn/δ)),   x* the first x with 1 + B(x, δ/2nd) > η,
        B(x, δ) = (λ/4)·x - 8·(log(x/δ) + √(x·log(x/δ)))

    Assumes users drawn uniformly, and contexts drawn i.i.d. from X with ‖X‖ ≤ 1, least eigenvalue λ of E[XXᵀ], and
    variance parameter ν² ≤ λ²/(8·ln 4c). Input that violates the last condition is rejected, which is every
    input with d ≥ 2 (`docs/theory.md` has the proof). Use `hardness_bound`.
    """
    _check_lemma(eta, n_rounds, n_users, n_features, delta)
    check_number("variance", variance)
    check_count("n_candidates", n_candidates)
    _check_eigenvalue(least_eigenvalue, n_features)
    most = least_eigenvalue**2 / (8 * math.log(4 * n_candidates))
    if variance > most:
        raise ParameterError(
            f"variance is {variance}, expected at most λ²/(8·ln 4c) = {most:.3g}; use hardness_bound instead"
        )
    if n_features >= 2:
        raise ParameterError(
            f"no contexts with n_features={n_features} have a variance of at most λ²/(8·ln 4c); use hardness_bound"
        )
    doubt = delta / (2 * n_users * n_features)

    def enough(x: float) -> bool:
        log = math.log(x / doubt)
        return 1 + least_eigenvalue / 4 * x - 8 * (log + math.sqrt(x * log)) > eta

    return _arrivals(_first(enough), n_rounds, n_users, delta)


def hardness_bound(
    *, eta: float, floor: float, n_rounds: int, n_users: int, n_features: int, delta: float
) -> float:
    """Return a bound on HD that holds with probability 1 - δ, by a cover of the sphere.

        D(x*),   x* = max( 4(η - 1)/μ,  (8/μ)·(d·log(1 + 16/μ) + log(2n/δ)) )

    with D as in `lemma_1` at δ/2, and μ (`floor`) a lower bound on E[min_k (z·x_{t,k})²] for every unit z, the
    quantity that Lemma 1 bounds by λ/4. Assumes users drawn uniformly and lists drawn i.i.d., ‖x‖ ≤ 1.

    Proof. For one z the numbers Y_s = min_k (z·x_{s,k})² are i.i.d. in [0, 1] with mean at least μ, so over x
    visits ΣY < μx/2 with probability at most exp(-μx/8). Changing z by ε changes each Y by at most 2ε; a cover
    with ε = μ/8 has at most (1 + 16/μ)^d points, so min_z ΣY ≥ μx/4 but for (1 + 16/μ)^d·exp(-μx/8). That
    minimum is the least eigenvalue under the worst choices (see `sphere`), and it only grows with x, so one x
    per user suffices. D(x) rounds bring each user x visits (Bernstein). ∎

    The paper's sketch has no factor d in front of the logarithm: it applies a bound for one adapted choice of
    candidates to all choices in hindsight, which HD considers.
    """
    _check_lemma(eta, n_rounds, n_users, n_features, delta)
    if not 0 < floor <= 1 / n_features + 1e-12:
        raise ParameterError(
            f"floor is {floor}, expected above 0 and at most 1/n_features = {1 / n_features:g}"
        )
    cover = n_features * math.log1p(16 / floor) + math.log(2 * n_users / delta)
    # One more visit if 4(η - 1)/μ is reached exactly: the eigenvalue must be above η.
    visits = max(math.floor(4 * max(0.0, eta - 1) / floor) + 1, math.ceil(8 / floor * cover))
    return _arrivals(visits, n_rounds, n_users, delta / 2)


def lemma_2(*, n_rounds: int, n_candidates: int, n_users: int, clusters: float, delta: float) -> float:
    """Return Lemma 2's bound on Σ_t 1/|N_{i_t}(x̄_t)|, which holds with probability 1 - δ.

        2T·c·E[m(X)]/n + 12·log(log T/δ)

    `clusters` is E[m(X)]. Assumes contexts drawn i.i.d., c_t ≤ c, and users drawn uniformly: the proof uses
    the last condition, which the statement omits; one user in a cluster alone who visits every time would
    break it. The tail bound behind it (Kakade and Tewari 2008, Theorem 3 in the appendix) needs T ≥ 3 and
    gives 3·log(4·log T/δ), at most the printed term while log T/δ ≥ 4^(1/3); other input is rejected.
    """
    check_count("n_rounds", n_rounds), check_count("n_candidates", n_candidates)
    check_count("n_users", n_users)
    _check_delta(delta)
    _check_clusters(clusters, n_users)
    if n_rounds < 3 or math.log(n_rounds) / delta < 4 ** (1 / 3):
        raise ParameterError(
            f"n_rounds is {n_rounds} and delta {delta}; Lemma 2 needs log T / δ ≥ 1.59 and T ≥ 3"
        )
    return 2 * n_rounds * n_candidates * clusters / n_users + 12 * math.log(math.log(n_rounds) / delta)


class Orders(TypedDict):
    """The parameters of the bounds that are orders of growth, without constants."""

    n_rounds: int  # T
    n_users: int  # n
    n_features: int  # d
    n_candidates: int  # c
    clusters: float  # E[m(X)]
    gap: float  # γ
    least_eigenvalue: float  # λ
    delta: float  # δ


def corollary_1(**orders: Unpack[Orders]) -> Terms:
    """Return the leading terms of Corollary 1; they are orders of growth, without constants.

    c·n²·d√d/(λ²γ²)·log^2.5(Tnd/δ)    and    d·√(T·c·E[m(X)])
    """
    _check_orders(orders)
    T, n, d, c = orders["n_rounds"], orders["n_users"], orders["n_features"], orders["n_candidates"]
    log = math.log(T * n * d / orders["delta"])
    start = c * n**2 * d**1.5 / (orders["least_eigenvalue"] * orders["gap"]) ** 2 * log**2.5
    return Terms(start, d * math.sqrt(T * c * orders["clusters"]))


def theorem_3(*, sparsity: int, rank: int | None = None, **orders: Unpack[Orders]) -> Terms:
    """Return the terms of the sparse theorem for s-sparse users; orders of growth, without constants.

        c·n²·s²√s/(λ²γ²)·log^2.5(Tnd/(δs))    and    √(s·d·T·c·E[m(X)])

    If contexts lie in a space of r dimensions (`rank`), r replaces d in the second term.
    """
    _check_orders(orders)
    T, n, d, c = orders["n_rounds"], orders["n_users"], orders["n_features"], orders["n_candidates"]
    width = d if rank is None else rank
    for name, value in (("sparsity", sparsity), ("rank", width)):
        if check_count(name, value) > d:
            raise ParameterError(f"{name} is {value}, expected at most n_features={d}")
    log = math.log(T * n * d / (orders["delta"] * sparsity))
    start = c * n**2 * sparsity**2.5 / (orders["least_eigenvalue"] * orders["gap"]) ** 2 * log**2.5
    return Terms(start, math.sqrt(sparsity * width * T * c * orders["clusters"]))


def _arrivals(visits: float, n_rounds: int, n_users: int, delta: float) -> float:
    """Return D(visits), at most T: by then each user has visited more than `visits` times, with probability 1 - δ."""
    return min(float(n_rounds), 2 * n_users * (visits + 5 / 3 * math.log(n_rounds * n_users / delta)))


def _first(enough: Callable[[float], bool]) -> float:
    """Return a number from which on `enough` is true, by doubling and bisection."""
    high = 1.0
    while not enough(high):
        high *= 2
    low = high / 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def _check_delta(delta: float) -> None:
    if not (isinstance(delta, int | float) and 0 < delta < 1):
        raise ParameterError(f"delta is {delta!r}, expected a probability above 0 and below 1")


def _check_positive(name: str, value: float) -> None:
    if check_number(name, value) <= 0:
        raise ParameterError(f"{name} is {value!r}, expected a number above 0")


def _check_clusters(clusters: float, n_users: int) -> None:
    if not 1 - 1e-9 <= clusters <= n_users + 1e-9:
        raise ParameterError(f"clusters is {clusters}, expected from 1 to n_users={n_users}")


def _check_eigenvalue(value: float, n_features: int) -> None:
    _check_positive("least_eigenvalue", value)
    if value > 1 / n_features + 1e-12:
        raise ParameterError(
            f"least_eigenvalue is {value}, expected at most 1/n_features = {1 / n_features:g}: ‖x‖ ≤ 1"
        )


def _check_run(
    alpha: float, n_rounds: int, n_users: int, n_features: int, hardness: float, inverse_sizes: float
) -> None:
    check_count("n_rounds", n_rounds), check_count("n_users", n_users), check_count("n_features", n_features)
    check_number("alpha", alpha, least=1.0)
    check_number("hardness", hardness)
    if hardness > n_rounds:
        raise ParameterError(f"hardness is {hardness}, expected at most n_rounds={n_rounds}")
    if not n_rounds / n_users - 1e-9 <= inverse_sizes <= n_rounds + 1e-9:
        raise ParameterError(
            f"inverse_sizes is {inverse_sizes}, expected from T/n = {n_rounds / n_users:g} to T = {n_rounds}"
        )


def _check_lemma(eta: float, n_rounds: int, n_users: int, n_features: int, delta: float) -> None:
    check_number("eta", eta)
    check_count("n_rounds", n_rounds), check_count("n_users", n_users), check_count("n_features", n_features)
    _check_delta(delta)


def _check_orders(orders: Orders) -> None:
    if orders.keys() != Orders.__annotations__.keys():
        raise TypeError(f"got {', '.join(orders)}, expected {', '.join(Orders.__annotations__)}")
    for name in ("n_rounds", "n_users", "n_features", "n_candidates"):
        check_count(name, orders[name])
    _check_delta(orders["delta"])
    _check_positive("gap", orders["gap"])
    _check_clusters(orders["clusters"], orders["n_users"])
    _check_eigenvalue(orders["least_eigenvalue"], orders["n_features"])
