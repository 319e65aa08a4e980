"""A user's own policy in a comparison: `own:make=package.module.function` names the function that makes it.

It is called with `n_features`, `one_hot` and `seed`, once per run, and returns any `Policy`. What it learned
is not saved, and a finished run is played again each time, because the function may have changed.
"""

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, ClassVar, final

from coterie.errors import ParameterError
from coterie.policies import Policy

OWN = "own"


@final
class Own:
    """A policy of your own."""

    name: ClassVar[str] = OWN
    finds_neighbours: ClassVar[bool] = False
    tuned: ClassVar[Mapping[str, Sequence[Any]]] = {}
    not_saved: ClassVar[tuple[str, ...]] = ()
    takes_both: ClassVar[bool] = False
    takes_names: ClassVar[bool] = False

    def __new__(
        cls, *, make: str | None = None, n_features: int | None = None, one_hot: bool = False, seed: int = 0
    ) -> Any:
        """Call the function, and return the policy that it makes."""
        policy = _imported(make)(n_features=n_features, one_hot=one_hot, seed=seed)
        if not isinstance(policy, Policy):
            raise ParameterError(
                f"own:make={make} made a {type(policy).__name__}, expected a coterie.Policy, such as "
                "coterie.bridges.FromFunction(…)"
            )
        return policy


def _imported(text: Any) -> Any:
    module, dot, name = str(text).rpartition(".")
    if text is None or not dot:
        raise ParameterError(f"own:make={text}; write own:make=module.function")
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ParameterError(
            f"own:make={text} cannot be imported ({error}); PYTHONPATH must name the folder of its module"
        ) from error
