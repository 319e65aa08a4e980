"""Examples as games: an example is the context, and its possible answers are the actions.

In classification sets the right class pays 1; they are files of scikit-learn, so nothing is downloaded. For prompts
the answers are three language models, and one pays its judged quality minus a price for its cost. There are no
users: every visitor is anonymous. Each pass shows all examples once, in a random order.
"""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, final

import numpy as np

from coterie.arrays import Floats
from coterie.data.blocks import STEP, BlockSource
from coterie.data.files import check_fingerprint, data_folder, need, sha256
from coterie.data.published.catalogue import read_known, source
from coterie.data.worlds.world import check_count
from coterie.errors import ParameterError
from coterie.models.batches import Batch
from coterie.models.candidates import InContext

LOADERS = {"digits": "load_digits", "cancer": "load_breast_cancer", "wine": "load_wine"}
PROMPTS, N_COMPONENTS = "prompts", 25
PICTURES = ("digits",)  # their features are pixels: all in the same unit


class Examples(NamedTuple):
    """The content of a set."""

    contexts: Floats  # (examples, n_context): the last is a constant; the longest row has norm 1
    payoffs: Floats  # (examples, actions)
    actions: list[str]  # the ids, in the order of the labels
    fingerprint: str


@final
@dataclass(frozen=True, kw_only=True)
class Classified(BlockSource):
    """Examples as rounds. Contexts are the same for all candidates of a round."""

    name: str
    passes: int
    price: float = 0.0  # of a dollar, in payoffs; for prompts
    verify: bool = True
    fingerprint: str | None = None  # of the examples; if given, it must match
    folder: str | os.PathLike[str] | None = None

    provenance: ClassVar[str] = "real"
    one_hot: ClassVar[bool] = False
    has_ids: ClassVar[bool] = True
    has_contexts: ClassVar[bool] = True
    is_log: ClassVar[bool] = False
    every: ClassVar[int] = 2_000  # rounds that a policy plays between two commits
    n_users: ClassVar[int] = 1

    def __post_init__(self) -> None:
        check_count("passes", self.passes, least=1)

    @property
    def about(self) -> str:
        """A description of a round, for reports."""
        return (
            f"A round shows one of {len(self.examples.payoffs):,} examples with {self.n_context} features. The "
            f"{self.n_candidates} candidates are its possible answers, and there is one payoff for each. "
            "Policies that see features get those of the example in the block of the candidate."
        )

    @cached_property
    def examples(self) -> Examples:
        """The examples, their classes and the classes' names."""
        place = data_folder(self.folder) if self.name == PROMPTS else Path("sklearn")
        found = _prompts(place, self.verify, self.price) if self.name == PROMPTS else _load(self.name)
        check_fingerprint(self.name, place, found.fingerprint, self.fingerprint)
        return found

    @property
    def n_context(self) -> int:
        """How many features an example has, with the constant."""
        return int(self.examples.contexts.shape[1])

    @property
    def n_items(self) -> int:
        """How many actions there are."""
        return len(self.examples.actions)

    n_candidates = n_items

    @property
    def n_features(self) -> int:
        """How many features a candidate has, for policies that see features alone: a block per action."""
        return self.n_items * self.n_context

    @property
    def n_rounds(self) -> int:
        """How many rounds there are."""
        return self.passes * len(self.examples.payoffs)

    def parameters(self) -> dict[str, Any]:
        """Return all parameters needed to make the same rounds again."""
        own = {"price": self.price, "verify": self.verify} if self.name == PROMPTS else {}
        return {"kind": self.name, "passes": self.passes, **own, "fingerprint": self.examples.fingerprint}

    def blocks(self, n_rounds: int, seed: int, start: int = 0) -> Iterator[Batch]:
        """Yield the rounds from `start` up to `n_rounds`, in blocks; the same for the same seed."""
        check_count("seed", seed, least=0)
        if n_rounds > self.n_rounds:
            raise ParameterError(
                f"{n_rounds:,} rounds are asked of {self.name}, which has {self.n_rounds:,}; ask for fewer, or for "
                "more passes"
            )
        contexts, known, actions, _ = self.examples
        rng = np.random.default_rng([seed, 13])
        order = np.concatenate([rng.permutation(len(known)) for _ in range(self.passes)])
        shown = rng.permuted(np.tile(np.arange(len(actions)), (len(order), 1)), axis=1)
        for first in range(start, n_rounds, STEP):
            rows = slice(first, min(first + STEP, n_rounds))
            examples, lists = order[rows], shown[rows]
            payoffs = np.take_along_axis(known[examples], lists, axis=1)
            candidates = np.arange(lists.size).reshape(lists.shape)
            items = InContext(actions, lists.ravel(), np.repeat(contexts[examples], len(actions), axis=0))
            yield Batch([None] * len(examples), candidates, items, payoffs)


def digits(*, passes: int = 3, **settings: Any) -> Classified:
    """Return 1,797 images of handwritten digits: 64 pixels, 10 actions."""
    return Classified(name="digits", passes=passes, **settings)


def cancer(*, passes: int = 5, **settings: Any) -> Classified:
    """Return 569 samples of tissue: 30 measurements, 2 actions."""
    return Classified(name="cancer", passes=passes, **settings)


def wine(*, passes: int = 10, **settings: Any) -> Classified:
    """Return 178 wines: 13 measurements, 3 actions, the growers."""
    return Classified(name="wine", passes=passes, **settings)


@lru_cache(maxsize=4)
def _load(name: str) -> Examples:
    """Read a set. Measurements are standardised, because their units are arbitrary; pixels are not."""
    found = getattr(need("sklearn.datasets", "reading classification sets"), LOADERS[name])()
    raw, labels = np.asarray(found.data, dtype=np.float64), np.asarray(found.target, dtype=np.int64)
    contexts = raw / raw.max() if name in PICTURES else (raw - raw.mean(axis=0)) / raw.std(axis=0)
    contexts = np.column_stack([contexts, np.ones(len(raw))])
    # Rounded, so that another machine's last bits change no choice.
    contexts = np.round(contexts / np.linalg.norm(contexts, axis=1).max(), 9)
    actions = [str(one) for one in found.target_names]
    payoffs = (labels[:, None] == np.arange(len(actions))).astype(np.float64)
    return Examples(contexts, payoffs, actions, sha256(raw.tobytes() + labels.tobytes())[:16])


def prompts(*, passes: int = 1, price: float = 10.0, **settings: Any) -> Classified:
    """Return 3,609 prompts: 25 features of the text, 3 actions, which are the models to ask."""
    return Classified(name=PROMPTS, passes=passes, price=price, **settings)


@lru_cache(maxsize=2)
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
    contexts = np.column_stack([vectors, np.full(len(lines), 0.5)])
    contexts = np.round(contexts / np.linalg.norm(contexts, axis=1).max(), 9)
    fingerprint = sha256("".join(map(sha256, read)).encode())[:16]
    return Examples(contexts, np.array(payoffs), actions, fingerprint)
