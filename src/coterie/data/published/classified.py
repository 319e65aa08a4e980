"""Examples as games: an example is the context, and its possible answers are the actions.

In classification sets the right class pays 1; they are files of scikit-learn, so nothing is downloaded. For prompts
the answers are three language models, and one pays its judged quality minus a price for its cost. There are no
users: every visitor is anonymous. Each pass shows all examples once, in a random order.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar, NamedTuple, final

import numpy as np

from coterie.arrays import Floats
from coterie.data.files import need, sha256
from coterie.data.published.catalogue import read_known, source
from coterie.data.published.dealt import Dealt, within_norm_one
from coterie.models.batches import Batch
from coterie.models.candidates import InContext

LOADERS = {"digits": "load_digits", "cancer": "load_breast_cancer", "wine": "load_wine", "iris": "load_iris"}
PROMPTS, N_COMPONENTS = "prompts", 25
PICTURES = ("digits",)  # their features are pixels: all in the same unit


class Examples(NamedTuple):
    """The content of a set."""

    contexts: Floats  # (examples, n_context): the last is a constant; the longest row has norm 1
    payoffs: Floats  # (examples, actions)
    items: list[str]  # the actions' ids, in the order of the labels
    fingerprint: str


@final
@dataclass(frozen=True, kw_only=True)
class Classified(Dealt):
    """Examples as rounds. Contexts are the same for all candidates of a round."""

    passes: int
    price: float = 0.0  # of a dollar, in payoffs; for prompts

    stream = 13
    counts = {"passes": 1}  # noqa: RUF012 (never changed)
    settings = ("passes", "price")
    has_contexts: ClassVar[bool] = True
    is_anonymous: ClassVar[bool] = True
    n_users = 1

    @property
    def about(self) -> str:
        """A description of a round, for reports."""
        return (
            f"A round shows one of {len(self.content.payoffs):,} examples with {self.n_context} features. The "
            f"{self.n_candidates} candidates are its possible answers, and there is one payoff for each. "
            "Policies that see features get those of the example in the block of the candidate."
        )

    def place(self) -> Path:
        """Return the folder of the files; those of scikit-learn are its own."""
        return super().place() if self.name == PROMPTS else Path("sklearn")

    def read(self, folder: Path) -> Examples:
        """Read the examples, their payoffs and the actions."""
        return _prompts(folder, self.verify, self.price) if self.name == PROMPTS else _load(self.name)

    @property
    def n_context(self) -> int:
        """How many features an example has, with the constant."""
        return int(self.content.contexts.shape[1])

    @property
    def n_candidates(self) -> int:
        """How many actions there are."""
        return len(self.content.items)

    @property
    def n_features(self) -> int:
        """How many features a candidate has, for policies that see features alone: a block per action."""
        return self.n_candidates * self.n_context

    @property
    def n_rounds(self) -> int:
        """How many rounds there are."""
        return self.passes * len(self.content.payoffs)

    def deal(self, rng: np.random.Generator) -> Batch:
        """Put the examples of each pass, and the actions of each round, into random order."""
        contexts, known, actions, _ = self.content
        n, width = known.shape
        order = np.concatenate([rng.permutation(n) for _ in range(self.passes)])
        lists = rng.permuted(np.tile(np.arange(width), (len(order), 1)), axis=1)
        items = InContext(actions, np.tile(np.arange(width), n), np.repeat(contexts, width, axis=0))
        payoffs = np.take_along_axis(known[order], lists, axis=1)
        return Batch([None] * len(order), order[:, None] * width + lists, items, payoffs)

    def blocks(self, n_rounds: int, seed: int, start: int = 0) -> Iterator[Batch]:
        """Yield the rounds in blocks, each with its own items alone."""
        for block in super().blocks(n_rounds, seed, start):
            shown = block.candidates
            own = np.arange(shown.size).reshape(shown.shape)
            yield block._replace(items=block.items.at(shown.ravel()), candidates=own)


digits = partial(Classified, name="digits", passes=3)  # 1,797 images: 64 pixels, 10 actions
cancer = partial(Classified, name="cancer", passes=5)  # 569 samples of tissue: 30 measurements, 2 actions
wine = partial(Classified, name="wine", passes=10)  # 178 wines: 13 measurements, 3 actions, the growers
iris = partial(Classified, name="iris", passes=10)  # 150 flowers: 4 measurements, 3 actions, the species
prompts = partial(Classified, name=PROMPTS, passes=1, price=10.0)  # 3,609 texts: 25 features, 3 models to ask


def _load(name: str) -> Examples:
    """Read a set. Measurements are standardised, because their units are arbitrary; pixels are not."""
    found = getattr(need("sklearn.datasets", "reading classification sets"), LOADERS[name])()
    raw, labels = np.asarray(found.data, dtype=np.float64), np.asarray(found.target, dtype=np.int64)
    contexts = raw / raw.max() if name in PICTURES else (raw - raw.mean(axis=0)) / raw.std(axis=0)
    contexts = within_norm_one(np.column_stack([contexts, np.ones(len(raw))]))
    actions = [str(one) for one in found.target_names]
    payoffs = (labels[:, None] == np.arange(len(actions))).astype(np.float64)
    return Examples(contexts, payoffs, actions, sha256(raw.tobytes() + labels.tobytes())[:16])


def _prompts(folder: Path, verify: bool, price: float) -> Examples:
    """Read the prompts. Features are the first components of the words' tf-idf; payoffs are at least -1."""
    read = [read_known(PROMPTS, file.name, folder, verify)[1] for file in source(PROMPTS).files]
    lines = [json.loads(line) for content in read for line in content.splitlines() if line.strip()]
    actions = sorted(lines[0]["arms"])
    judged = [[line["arms"][name] for name in actions] for line in lines]
    payoffs = [[max(-1.0, one["reward"] - price * one["cost"]) for one in row] for row in judged]
    words = need("sklearn.feature_extraction.text", "reading prompts").TfidfVectorizer(min_df=3)
    made = need("sklearn.decomposition", "reading prompts").TruncatedSVD(N_COMPONENTS, random_state=0)
    vectors = made.fit_transform(words.fit_transform([line["prompt"] for line in lines]))
    contexts = within_norm_one(np.column_stack([vectors, np.full(len(lines), 0.5)]))
    fingerprint = sha256("".join(map(sha256, read)).encode())[:16]
    return Examples(contexts, np.array(payoffs), actions, fingerprint)
