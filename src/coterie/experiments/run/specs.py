"""Policies as written on a command line: `cab`, `linucb-single`, `cab:alpha=0.05:items=ids`.

`own:make=package.module.function` is a policy of the user's own. The function is called with `n_features`, `one_hot`
and `seed`, once per run, and returns any `Policy`. What it learned is not saved, and a finished run is played again
each time, because the function may have changed.
"""

import inspect
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, ClassVar, final

from coterie.arrays import JsonObject
from coterie.errors import ParameterError
from coterie.models.candidates import VIEWS
from coterie.policies import POLICIES, Policy
from coterie.policies.vw import SETTINGS

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


# What a spec may name: our policies, and the user's own.
KINDS: JsonObject = {**POLICIES, OWN: Own}
# The paper's names for one class with one parameter set.
NICKNAMES: dict[str, tuple[str, JsonObject]] = {
    "linucb-single": ("linucb", {"shared": True}),
    "linucb-multiple": ("linucb", {"shared": False}),
}
TITLES = {"linucb-single": "LinUCB-SINGLE", "linucb-multiple": "LinUCB-MULTIPLE", "random": "RAN"}
# These come from the world and the run, not from the spec.
GIVEN = ("n_features", "one_hot", "seed")
WORDS = {"true": True, "false": False, "none": None, "null": None}
# The part of items that the policy sees. A setting of every spec, not a parameter of policies.
ITEMS = "items"
FEW = 128  # items: so many ids may be unit vectors for a policy of vectors
# Names that stand for several settings: all are played, and the best in hindsight is reported.
IN_HINDSIGHT: dict[str, tuple[str, Sequence[str]]] = {"vw": ("setting", tuple(SETTINGS))}
DEFAULT = "hierarchical,cab,dynucb,club,linucb-single,linucb-multiple,random"


@final
@dataclass(frozen=True)
class Spec:
    """A policy to make: the user's text, the class it names, and the parameters that differ from defaults."""

    text: str
    name: str
    parameters: JsonObject
    items: str | None = None  # the part of items that the policy sees, if the spec sets it
    stands_for: str = ""  # the spec of which this is the best setting in hindsight

    @property
    def title(self) -> str:
        """The policy's name in tables and figures."""
        name, *settings = self.text.split(":")
        if self.stands_for:
            key, values = IN_HINDSIGHT[self.name]
            settings = [one for one in settings if not one.startswith(f"{key}=")]
            settings.append(f"best of {len(values)}: {self.parameters[key]}")
        if name == OWN:
            return str(self.parameters.get("make")).rpartition(".")[2]
        title = TITLES.get(name) or POLICIES[self.name].__name__
        return f"{title} ({', '.join(settings)})" if settings else title

    def variants(self) -> list["Spec"]:
        """Return the settings this spec stands for (the best in hindsight counts), or the spec itself."""
        key, values = IN_HINDSIGHT.get(self.name, ("", ()))
        if not key or key in self.parameters:
            return [self]
        return [replace(parse_spec(f"{self.text}:{key}={v}"), stands_for=self.text) for v in values]

    def view(self, world: Any) -> str:
        """Return which part of items the policy sees on `world`: one of VIEWS.

        Unless the spec sets it: names if actions have a context and the policy takes names, both if the data have
        both and the policy takes both, else features if there are any, else ids, or, for a policy of vectors alone,
        ids as unit vectors if there are few.
        """
        has_features = world.n_features is not None
        has_ids = bool(world.one_hot or world.has_ids)
        has_names = world.has_contexts
        is_few = not has_features and 0 < (getattr(world, "n_items", None) or 0) <= FEW
        there = (has_features, has_ids, has_features and has_ids, has_names, is_few)
        known = [v for v, has in zip(VIEWS, there, strict=True) if has]
        takes_both, takes_names = KINDS[self.name].takes_both, KINDS[self.name].takes_names
        if self.items is None:
            if takes_names and has_names:
                return "names"
            if known[0] == "ids" and is_few and "one_hot" not in defaults(self.name):
                return "units" if "n_features" in defaults(self.name) else "ids"
            return "both" if takes_both and "both" in known else known[0]
        if self.items not in known:
            raise ParameterError(
                f"items={self.items} in {self.text!r}: these data have {known[0]} only; leave items= out"
            )
        if self.items == "both" and not takes_both:
            raise ParameterError(
                f"items=both in {self.text!r}: {self.name} takes features or ids, not both; write items=features "
                "or items=ids"
            )
        if self.items == "names" and not takes_names:
            raise ParameterError(
                f"items=names in {self.text!r}: {self.name} takes no names; leave items= out"
            )
        return self.items

    def complete(self, *, view: str, n_features: int | None, seed: int) -> JsonObject:
        """Return every parameter of the policy's constructor, for one world and one run."""
        accepted = defaults(self.name)
        given: JsonObject = {"seed": seed}
        if view in ("features", "both", "units"):
            given["n_features"] = n_features
        if view in ("ids", "both"):
            given["one_hot"] = True
        return accepted | {key: value for key, value in given.items() if key in accepted} | self.parameters


def make_policy(name: str, parameters: JsonObject) -> Policy:
    """Make a policy from its name in `KINDS` and its constructor's parameters."""
    try:
        return KINDS[name](**parameters)  # type: ignore[no-any-return]
    except TypeError as error:
        raise ParameterError(f"policy {name!r} cannot be made with {parameters}: {error}") from error


def names() -> list[str]:
    """Return every name a spec may start with."""
    nicknamed = {name for name, _ in NICKNAMES.values()}
    return sorted({*NICKNAMES, *POLICIES} - nicknamed)


def parse_specs(text: str) -> list[Spec]:
    """Read specs separated by commas; no spec may repeat."""
    specs = [parse_spec(part.strip()) for part in text.split(",") if part.strip()]
    if not specs:
        raise ParameterError(f"policies={text!r} names no policy; choose among {', '.join(names())}")
    for spec in specs:
        if [other.text for other in specs].count(spec.text) > 1:
            raise ParameterError(f"policy {spec.text!r} is listed twice; give each policy once")
    return specs


def parse_spec(text: str) -> Spec:
    """Read one spec: a name, then `:parameter=value` as often as needed."""
    written, *settings = text.split(":")
    name = _spelled(written)
    if name is None:
        raise ParameterError(f"unknown policy {written!r}; choose among {', '.join(names())}")
    text = ":".join([name, *settings])
    name, parameters = NICKNAMES.get(name, (name, {}))
    choices = sorted({*defaults(name), ITEMS} - set(GIVEN) - set(parameters))
    chosen: JsonObject = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        key = next((name for name in choices if name.lower() == key.strip().lower()), key)
        if not equals or key not in choices:
            raise ParameterError(
                f"unknown setting {setting!r} in {text!r}; write name=value with {', '.join(choices)}"
            )
        chosen[key] = _value(value)
    items = chosen.pop(ITEMS, None)
    if items not in (None, *VIEWS):
        raise ParameterError(f"items={items} in {text!r}; expected items={', items='.join(VIEWS)}")
    return Spec(text, name, parameters | chosen, items)


def _spelled(text: str) -> str | None:
    """Return the policy's name for a name, table title or class name, ignoring case; None if unknown."""
    known = {kind.__name__: name for name, kind in POLICIES.items()} | {TITLES[name]: name for name in TITLES}
    known |= {name: name for name in (*NICKNAMES, *KINDS)}
    return {spelling.lower(): name for spelling, name in known.items()}.get(text.strip().lower())


def _value(text: str) -> Any:
    """Read a number, true, false or none, ignoring case; anything else is text."""
    text = text.strip()
    if text.lower() in WORDS:
        return WORDS[text.lower()]
    try:
        return json.loads(text)
    except ValueError:
        return text


def defaults(name: str) -> JsonObject:
    """Return the constructor's parameters with their defaults (None without one), except those not saved."""
    policy = KINDS[name]
    found = [p for p in inspect.signature(policy).parameters.values() if p.name not in policy.not_saved]
    return {p.name: None if p.default is p.empty else p.default for p in found}
