"""A run: one policy on one world with one seed, described by plain values so that it can be repeated."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, final

import numpy as np

import coterie
from coterie.data.blocks import Block
from coterie.data.datasets import Part
from coterie.data.rounds import Round
from coterie.errors import ParameterError
from coterie.experiments.run.specs import Spec, make_policy
from coterie.experiments.run.worlds import World, make_world
from coterie.models.candidates import project
from coterie.policies import Policy

FRIENDS = "friends"
# What decides a trace: the policies on their models, the data, and the modules through which a run is played.
ROOMS = ("models", "policies", "data")
WRITERS = ("batches", "play", "record", "runs", "specs", "trace", "worlds")
FORMAT = 1  # of the header, and with it of the trace


@final
@dataclass(frozen=True)
class Run:
    """Everything that decides what happens in a run. Two equal runs have equal traces."""

    label: str  # what the user calls the policy
    policy: str  # its name in POLICIES
    parameters: dict[str, Any]  # all of its constructor's parameters
    world: dict[str, Any]  # from which `make_world` makes the world again
    seed: int  # of the rounds
    n_rounds: int
    items: str = "features"  # what of items known by features and ids the policy is shown: one of VIEWS

    @classmethod
    def of(cls, spec: Spec, world: World, seed: int, n_rounds: int) -> "Run":
        """Describe the run of `spec` on `world`. The policy's own randomness is seeded apart from the world's."""
        own_seed = int(np.random.SeedSequence([seed, 1]).generate_state(1)[0])
        view = spec.view(world)
        parameters = spec.complete(view=view, n_features=world.n_features, seed=own_seed)
        return cls(spec.text, spec.name, parameters, world.parameters(), seed, n_rounds, view)

    def make_policy(self) -> Policy:
        """Make the untrained policy. `graph=friends` stands for who is whose friend in the data."""
        parameters = self.parameters
        if parameters.get("graph") == FRIENDS:
            world: Any = self.make_world()
            while isinstance(world, Part):
                world = world.of
            if not hasattr(world, "friends"):
                raise ParameterError(
                    f"graph={FRIENDS} in {self.label!r}: these data do not say who is whose friend; LastFM and "
                    "Delicious do"
                )
            parameters = parameters | {"graph": world.friends()}
        return make_policy(self.policy, parameters)

    def rounds(self) -> Iterator[Round]:
        """Yield the run's rounds, from the first, with what the policy is shown of the items."""
        for visit in self.make_world().rounds(self.n_rounds, self.seed):
            yield visit._replace(contexts=project(visit.contexts, self.items))

    def blocks(self, start: int) -> Iterator[Block]:
        """Yield the same rounds from `start` on as blocks, where the world gives blocks."""
        world: Any = self.make_world()
        for block in world.blocks(self.n_rounds, self.seed, start):
            yield block._replace(items=project(block.items, self.items))

    def make_world(self) -> World:
        """Make the world again."""
        return make_world(self.world)

    def header(self) -> dict[str, Any]:
        """Return the run and the code that runs it, as JSON values."""
        made_with = {"coterie": coterie.__version__, "code": _code(), "numpy": np.__version__}
        header = {"format": FORMAT, "made_with": made_with, **asdict(self)}
        return dict(json.loads(json.dumps(header)))

    @classmethod
    def from_header(cls, header: dict[str, Any]) -> "Run":
        """Return the run that a trace's header describes."""
        return cls(**{key: header[key] for key in cls.__dataclass_fields__ if key in header})

    def file_name(self) -> str:
        """Return a name for the trace that no other run has."""
        digest = hashlib.sha256(json.dumps(self.header(), sort_keys=True).encode()).hexdigest()
        readable = "".join(letter if letter.isalnum() or letter in "-.=" else "_" for letter in self.label)
        return f"{readable[:60]}-seed{self.seed}-{digest[:10]}.parquet"


@cache
def _code() -> str:
    """Return a fingerprint of the code that decides a trace, so that none outlives a change of it."""
    digest = hashlib.sha256()
    for path in code_files():
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def code_files() -> list[Path]:
    """Return every file that has a say in what a trace holds."""
    package = Path(coterie.__file__).parent
    files = [path for room in ROOMS for path in package.glob(f"{room}/**/*.py")]
    return sorted([*files, *(package / "experiments" / "run" / f"{name}.py" for name in WRITERS)])
