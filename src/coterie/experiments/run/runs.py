"""A run: one policy on one world with one seed, described by plain values so that it can be repeated."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, final

import numpy as np

import coterie
from coterie.arrays import JsonObject
from coterie.data.datasets import Source
from coterie.data.rounds import Round, rounds_of
from coterie.errors import ParameterError
from coterie.experiments.run.specs import Spec, make_policy
from coterie.experiments.run.worlds import make_world
from coterie.models.actions import Action, Actions
from coterie.models.batches import Batch
from coterie.models.candidates import project
from coterie.policies import POLICIES, Policy

FRIENDS = "friends"
EVERYBODY = "everybody"  # the user of data without users
# The code that determines a trace: policies, models, data, and the modules that play a run.
ROOMS = ("models", "policies", "data")
WRITERS = ("play", "record", "runs", "specs", "trace", "worlds")
FORMAT = 1  # of the header, and with it of the trace


@final
@dataclass(frozen=True)
class Run:
    """All parameters of a run. Equal runs have equal traces."""

    label: str  # the policy as the user wrote it
    policy: str  # its name in KINDS of `specs`
    parameters: JsonObject  # all of its constructor's parameters
    world: JsonObject  # `make_world` makes the world from these
    seed: int  # of the rounds
    n_rounds: int
    items: str = "features"  # which part of items the policy sees: one of VIEWS

    @classmethod
    def of(cls, spec: Spec, world: Source, seed: int, n_rounds: int) -> "Run":
        """Describe the run of `spec` on `world`. The policy's random numbers have a seed of their own."""
        own_seed = int(np.random.SeedSequence([seed, 1]).generate_state(1)[0])
        view = spec.view(world)
        n_features = getattr(world, "n_items", None) if view == "units" else world.n_features
        parameters = spec.complete(view=view, n_features=n_features, seed=own_seed)
        return cls(spec.text, spec.name, parameters, world.parameters(), seed, n_rounds, view)

    @property
    def can_resume(self) -> bool:
        """Whether the policy can be saved, so that the run can continue where it stopped, and is played only once."""
        return self.policy in POLICIES

    def make_policy(self) -> Policy:
        """Make the untrained policy. `graph=friends` and `friends=friends` mean the friendships in the data."""
        parameters = self.parameters
        for name in ("graph", FRIENDS):
            if parameters.get(name) != FRIENDS:
                continue
            world: Any = self.make_world()
            if not hasattr(world, "friends"):
                raise ParameterError(
                    f"{name}={FRIENDS} in {self.label!r}: these data have no friendships; LastFM and Delicious "
                    "have them"
                )
            parameters = parameters | {name: world.friends()}
        return make_policy(self.policy, parameters)

    def rounds(self) -> Iterator[Round]:
        """Yield the run's rounds from the first on, with the part of the items that the policy sees."""
        return chain.from_iterable(map(rounds_of, self.blocks(0)))

    def blocks(self, start: int) -> Iterator[Batch]:
        """Yield the same rounds from `start` on, in batches."""
        world = self.make_world()
        alone = world.is_anonymous and self.items != "names"
        for block in world.blocks(self.n_rounds, self.seed, start):
            # A model per user is then a model of everybody, not of nobody.
            users = [EVERYBODY] * len(block.users) if alone else block.users
            yield block._replace(users=users, items=_shown(block.items, self.items, world))

    def make_world(self) -> Source:
        """Make the world again."""
        return make_world(self.world)

    def header(self) -> JsonObject:
        """Return the run and the code that runs it, as JSON values."""
        made_with = {"coterie": coterie.__version__, "code": _code(), "numpy": np.__version__}
        header = {"format": FORMAT, "made_with": made_with, **asdict(self)}
        return dict(json.loads(json.dumps(header)))

    @classmethod
    def from_header(cls, header: JsonObject) -> "Run":
        """Return the run that a trace's header describes."""
        return cls(**{key: header[key] for key in cls.__dataclass_fields__ if key in header})

    def file_name(self) -> str:
        """Return a unique file name for the trace."""
        digest = hashlib.sha256(json.dumps(self.header(), sort_keys=True).encode()).hexdigest()
        readable = "".join(letter if letter.isalnum() or letter in "-.=" else "_" for letter in self.label)
        return f"{readable[:60]}-seed{self.seed}-{digest[:10]}.parquet"


def _shown(items: Actions, view: str, world: Any) -> Actions:
    """Return the part of items that a policy sees."""
    if view == "units":
        listed = getattr(world, "items", None) or range(world.n_items)
        return np.eye(len(listed))[[listed.index(item) for item in items]]
    if view != "names":
        return project(items, view)
    names = [f"x{k}" for k in range(items.contexts.shape[1])]
    rows = items.contexts.tolist()
    return [
        Action(a, {}, dict(zip(names, row, strict=True))) for a, row in zip(items.names, rows, strict=True)
    ]


@cache
def _code() -> str:
    """Return a fingerprint of the code that determines a trace, so that changed code gets new traces."""
    digest = hashlib.sha256()
    for path in code_files():
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def code_files() -> list[Path]:
    """Return every file whose code determines a trace."""
    package = Path(coterie.__file__).parent
    files = [path for room in ROOMS for path in package.glob(f"{room}/**/*.py")]
    return sorted([*files, *(package / "experiments" / "run" / f"{name}.py" for name in WRITERS)])
