"""VW: Vowpal Wabbit's contextual bandits, for comparison (Agarwal et al., 2014; Foster, Rakhlin, 2020).

A round is one multiline example. The namespace U holds the user's id, A an item's id and features, if it has
them; `-q UA` pairs them. A cost is minus a payoff. VW returns probabilities; the choice is drawn from them
with our own generator, so that a run depends only on its seed.

Examples are text: Vowpal Wabbit's package has nothing faster. `run` parses a list once for both predicting
and learning, and caches the lines of items with features. So it plays 9,600 rounds per second on LastFM and
23,500 on `movielens-repeat`; the package's `predict` and `learn`, which parse separately, reach 1,400 and
5,200.
"""

import copy
import os
import tempfile
from collections.abc import Hashable
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, ClassVar, NamedTuple, final
from urllib.parse import quote

import numpy as np

from coterie.arrays import Floats, JsonObject
from coterie.errors import FileError, ParameterError
from coterie.models.actions import ActionLike, Actions, ActionsLike
from coterie.models.batches import names_of, no_outcome
from coterie.models.candidates import Candidates
from coterie.models.checks import read_payoff
from coterie.models.context_kind import check_kind
from coterie.models.files import Tensors, pack_ids, take, unpack_ids
from coterie.models.probability import draw_from
from coterie.policies.base.batch import Batch, Outcome, read_batch
from coterie.policies.base.calls import ANONYMOUS
from coterie.policies.base.decision import Basis, Decision
from coterie.policies.base.parameters import Seed, make_rng
from coterie.policies.base.policy import Policy
from coterie.policies.base.vowpal_options import SPACES, open_vowpal, read_bandit

# Azure Personalizer's old default, and four settings that do well on some datasets.
SETTINGS: dict[str, str] = {
    "personalizer": "--cb_explore_adf --epsilon 0.1 --power_t 0 -l 0.001 --cb_type mtr -q ::",
    "epsilon": "--cb_explore_adf --epsilon 0.05 -q UA",
    "fast": "--cb_explore_adf --epsilon 0.02 -l 2 -q UA",
    "squarecb": "--cb_explore_adf --squarecb -q UA",
    "slow": "--cb_explore_adf --epsilon 0.02 -l 0.1 -q UA",
}
# With VW's default of 18 bits too many pairs of users and items share a weight: on MovieLens the best setting
# has 0.744 (new lists) and 0.362 (repeated ones) of RAN's regret, with 22 bits 0.732 and 0.350. 24 bits are
# no better.
FIXED = ["-b", "22", "--random_seed", "1"]
MANY = 50_000  # items whose lines are cached
# Counters are saved with the model, so that reading and writing a model gives the same file.
ALWAYS = ["--quiet", "--preserve_performance_counters"]


class LastDecision(NamedTuple):
    """A decision: the user, the candidates as lines of text, and their probabilities."""

    user: Hashable
    lines: list[str]
    chances: list[float]
    choice: int


@final
@dataclass(kw_only=True, eq=False, repr=False)
class VW(Policy):
    """Vowpal Wabbit: one linear model over pairs of users and items, with random exploration.

    n_features
        How many features a context has; they may have any norm.
    one_hot
        True if contexts are item ids. With both, contexts are `Candidates`.
    setting
        One of five: Personalizer's old default, epsilon 0.05, a fast and a slow learning rate with epsilon 0.02, and
        SquareCB.
    arguments
        Vowpal Wabbit's own arguments, in place of a setting: "--cb_explore_adf --epsilon 0.2 --cb_type mtr". There
        are two namespaces, which are always paired, so options that name namespaces (-q, --ignore, …) have no effect.
    seed
        Seed of the choices: an integer, or a numpy.random.Generator.

    Raises ParameterError if a setting is not valid, MissingExtraError if vowpalwabbit is not installed.

    >>> policy = VW(one_hot=True)
    >>> policy.learn("ann", "jazz", 1.0)
    1

    If the last decision was for this user and contains this context, as always in `run`, `learn` gives Vowpal
    Wabbit its whole list with the probabilities. Otherwise, and for decisions from before the policy was
    saved, it learns from the context alone, with probability 1. Dropping a user does not change the hashed
    weights: VW cannot remove what they learned.
    """

    name = "vw"
    reference = "Vowpal Wabbit, https://vowpalwabbit.org"
    takes_both: ClassVar[bool] = True

    n_features: int | None = None
    one_hot: bool = False
    setting: str = "squarecb"
    arguments: str | None = None
    seed: Seed = 0
    rng: np.random.Generator = field(init=False)

    def __post_init__(self) -> None:
        if self.setting not in SETTINGS:
            raise ParameterError(f"setting is {self.setting!r}, expected one of: {', '.join(SETTINGS)}")
        self._kind = check_kind(self.n_features, self.one_hot)
        self.n_features, self.one_hot = self._kind
        self.rng = make_rng(self.seed)
        self._vw = _open([*_words(self.setting, self.arguments), *FIXED])
        self._label_type = self._vw.get_label_type().value
        self._last: LastDecision | None = None
        self._texts: dict[tuple[Hashable, bytes], str] = {}  # cached lines of items with features

    def decide(self, user: Hashable, contexts: ActionsLike) -> Decision:
        """Return Vowpal Wabbit's probabilities, which are the scores too."""
        contexts = self._kind.read(contexts)
        lines = self._lines(contexts)
        chances = self._predict(self._own([_shared(user), *lines]))
        basis = Basis(self._members(user))
        return Decision(user, contexts, chances, chances, estimate=np.zeros(len(lines)), basis=basis)

    def draw(self, decision: Decision) -> int:
        """Draw a candidate, and keep the decision, to learn from it."""
        k = super().draw(decision)
        lines = self._lines(decision.contexts)
        self._last = LastDecision(decision.user, lines, decision.probability.tolist(), k)
        return k

    def neighbours(self, user: Hashable, context: ActionLike) -> list[Hashable]:
        """Return all users, including `user`: there is one model."""
        self._kind.read_one(context)
        return list(self._known | {user: None})

    def learn(self, user: Hashable, context: ActionLike, payoff: float) -> int:
        """Learn from the last decision's list, or from `context` alone if it does not belong to that decision."""
        [line] = self._lines(self._kind.read_one(context))
        payoff = read_payoff(payoff)
        last = self._last
        if last is not None and last.user == user and line in last.lines:
            lines, chances = last.lines, last.chances
            k = last.choice if lines[last.choice] == line else lines.index(line)
        else:
            lines, chances, k = [line], [1.0], 0
        self._teach(self._parse([_shared(user), *lines]), k, payoff, chances[k])
        self._known.setdefault(user)
        self.learned += 1
        return 1

    def run(self, batch: Batch) -> Outcome:
        """Play many rounds in Python: most of the time is spent in Vowpal Wabbit."""
        candidates, payoffs, served = read_batch(batch)
        lines: dict[int, str] = {}
        table = self._kind.read(batch.items) if len(candidates) else batch.items
        outcome, known, users = no_outcome(len(candidates)), self._known, names_of(batch.users)
        for t, (user, row, place) in enumerate(zip(users, candidates.tolist(), served.tolist(), strict=True)):
            for item in row:
                if item not in lines:
                    [lines[item]] = self._lines(table[item : item + 1])
            texts = [_shared(user), *(lines[item] for item in row)]
            # Examples from the parser change the model's counters when returned, so they must be learned.
            examples = self._parse(texts) if place < 0 else self._own(texts)
            chances = self._predict(examples)
            k = draw_from(chances, self.rng)
            outcome.choice[t], outcome.members[t] = k, self._members(user)
            self._last = LastDecision(user, texts[1:], chances.tolist(), k)
            if place in (-1, k):
                if place >= 0:
                    examples = self._parse(texts)
                self._teach(examples, k, float(payoffs[t, k if place < 0 else 0]), float(chances[k]))
                outcome.kept[t], outcome.updated[t] = True, 1
                known.setdefault(user)
                self.learned += 1
        return outcome

    def _members(self, user: Hashable) -> int:
        return len(self._known) + (user not in self._known)

    def _lines(self, contexts: Actions) -> list[str]:
        """Return each candidate as a line of text: the id as a category, the features as numbers."""
        if self.n_features is None:
            return [f"|A i{_text(item)}" for item in contexts]
        both = isinstance(contexts, Candidates)
        lines, texts = [], self._texts
        for k, row in enumerate(contexts.features if both else contexts):
            name = contexts.ids[k] if both else None
            key = (name, row.tobytes())
            if key not in texts:
                if len(texts) >= MANY:
                    texts.clear()
                label = f" i{_text(name)}" if both else ""
                values = " ".join(f"x{place}:{value!r}" for place, value in enumerate(row.tolist()) if value)
                texts[key] = f"|A{label} {values}"
            lines.append(texts[key])
        return lines

    def _parse(self, lines: list[str]) -> list[Any]:
        """Return examples from Vowpal Wabbit's pool, which `_teach` returns to it."""
        examples: list[Any] = self._vw._parse("\n".join(lines))
        return examples

    def _own(self, lines: list[str]) -> list[Any]:
        """Return examples that do not change the model's counters: slower than `_parse`."""
        library = import_module("pylibvw")
        return [library.example(self._vw, self._label_type, line) for line in lines]

    def _predict(self, examples: list[Any]) -> Floats:
        """Return the candidates' probabilities."""
        self._vw.predict_multi(examples)
        chances: Floats = np.array(examples[0].get_action_scores())
        chances /= chances.sum()
        return chances

    def _teach(self, examples: list[Any], k: int, payoff: float, chance: float) -> None:
        """Learn the payoff of candidate k, which was chosen with probability `chance`."""
        examples[1 + k].set_label_string(self._vw, f"0:{-payoff!r}:{chance!r}", self._label_type)
        self._vw.learn_multi(examples)
        self._vw._finish_example_multi_ex(examples)

    def drop(self, user: Hashable) -> None:
        """Forget that a user is known; the weights stay."""
        super().drop(user)
        if self._last is not None and self._last.user == user:
            self._last = None

    def tensors(self) -> Tensors:
        """Return the known users, and Vowpal Wabbit's model file as bytes."""
        model = np.frombuffer(_saved(self._vw), dtype=np.uint8)
        return {"known": pack_ids(self._known), "model": model}

    def restore(self, tensors: Tensors) -> None:
        known = dict.fromkeys(unpack_ids(tensors, "known"))
        model = take(tensors, "model", "u", (None,)).tobytes()
        # A model file holds options, which could name files to write: only our own options are allowed.
        if _options(model) != _options(_saved(self._vw)):
            raise FileError(
                f"the model in the file is not Vowpal Wabbit's with setting={self.setting!r} and "
                f"arguments={self.arguments!r}, or of another version"
            )
        self._vw = _reopened(model)
        self._known, self._last = known, None

    def _copied(self, memo: dict[int, Any]) -> JsonObject:
        """Return the state for copies and pickles, with Vowpal Wabbit's model file."""
        with self._lock:
            rest = {name: value for name, value in vars(self).items() if name not in ("_lock", "_vw")}
            return {**copy.deepcopy(rest, memo), "_vw": _saved(self._vw)}

    def __setstate__(self, state: JsonObject) -> None:
        super().__setstate__({**state, "_vw": _reopened(state["_vw"])})


def _words(setting: str, arguments: str | None) -> list[str]:
    """Return the options for a setting, or for arguments: those about namespaces and memory are ours."""
    if arguments is None:
        return SETTINGS[setting].split()
    options = [one for one in read_bandit(arguments) if one.name not in (*SPACES, "bit_precision")]
    return [*(word for option in options for word in option.words), "-q", "UA"]


def _open(options: list[str]) -> Any:
    """Return a Vowpal Wabbit."""
    return open_vowpal([*options, *ALWAYS])


def _saved(vw: Any) -> bytes:
    """Return the model file. Vowpal Wabbit writes to paths only."""
    with tempfile.TemporaryDirectory(prefix="coterie-") as folder:
        path = os.path.join(folder, "model")
        vw.save(path)
        with open(path, "rb") as file:
            return file.read()


def _reopened(model: bytes) -> Any:
    """Return a Vowpal Wabbit that continues from a model file. It reads from paths only."""
    with tempfile.TemporaryDirectory(prefix="coterie-") as folder:
        path = os.path.join(folder, "model")
        with open(path, "wb") as file:
            file.write(model)
        try:
            return _open(["-i", path])
        except ParameterError as error:
            raise FileError(f"Vowpal Wabbit cannot read the model in the file ({error})") from error


def _options(model: bytes) -> tuple[bytes, bytes]:
    """Return the version and the options at the start of a model file."""
    version, _, rest = model[4:1000].partition(b"\0")
    return version, rest[rest.find(b" --") :].partition(b"\0")[0]


def _text(name: Hashable) -> str:
    """Return an id as text without blanks, colons and bars, which are special in Vowpal Wabbit's format."""
    return quote(repr(name.item() if isinstance(name, np.generic) else name), safe="'(),")


def _shared(user: Hashable) -> str:
    return "shared |U" if user in (None, ANONYMOUS) else f"shared |U u{_text(user)}"
