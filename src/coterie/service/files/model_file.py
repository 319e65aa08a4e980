"""The service's model as one safetensors file with users' names, which another service can import."""

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from coterie.data.logs.records import Kind
from coterie.data.logs.rules import Config
from coterie.errors import FileError
from coterie.models.files import Tensors, content_checksum, pack_ids, unpack_ids
from coterie.models.ranges import LEAST_STORED
from coterie.service.core.bandit import Bandit
from coterie.service.core.policies import restore_policy
from coterie.service.core.policy_config import make_policy
from coterie.service.ids import RULE, is_id

VERSION = "1"
MODEL = "coterie-model"  # the name of the header in the file's metadata


class Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file's metadata."""

    version: str
    policy: str
    parameters: dict[str, Any]
    dimensions: int
    learned: dict[Kind, int]
    names: dict[str, str]  # number, as text, to name
    checksum: str = ""  # of all else


def export_model(bandit: Bandit) -> bytes:
    """Return the file."""
    config = bandit.config
    tensors: Tensors = {}
    learned: dict[Kind, int] = {}
    numbers: set[Any] = set()
    for kind, policy in bandit.policies.made.items():
        learned[kind] = policy.learned
        numbers.update(policy.users)
        tensors |= {f"{kind}.{k}": np.ascontiguousarray(v) for k, v in policy.tensors().items()}
    names = {str(number): bandit.ids[number] for number in bandit.ids.keys() & numbers}
    header = Header(VERSION, config.policy, config.parameters, config.dimensions, learned, names)
    header = msgspec.structs.replace(header, checksum=_checksum(header, tensors))
    return save(tensors, metadata={MODEL: msgspec.json.encode(header).decode()})


def _checksum(header: Header, tensors: Tensors) -> str:
    rest = msgspec.json.encode(msgspec.structs.replace(header, checksum=""))
    return content_checksum({MODEL: rest.decode()}, tensors)


def import_model(content: bytes, bandit: Bandit, at: int) -> None:
    """Replace the bandit's model by that of a file. The file is checked before anything changes."""
    try:
        header = _header(content)
        _check_same(header, bandit.config)
    except RecursionError as error:
        raise FileError("this is not a model file that coterie wrote (its header nests too deep)") from error
    try:
        tensors = load(content)
        if header.checksum != _checksum(header, tensors):
            raise ValueError("its checksum does not fit its content")
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise FileError(f"the model file is damaged: {error}") from error
    number_of = _numbers(header.names, bandit)
    parts = {kind: _part(kind, tensors, header, number_of, bandit.config) for kind in header.learned}
    names = {number_of[old]: name for old, name in header.names.items()}
    bandit.replace_model(names, parts, at)


def _header(content: bytes) -> Header:
    try:
        size = int.from_bytes(content[:8], "little")
        if not 0 < size <= len(content) - 8:
            raise ValueError("it is cut short, or something else")
        told = msgspec.json.decode(content[8 : 8 + size], type=dict[str, Any]).get("__metadata__", {})
        header = msgspec.json.decode(told[MODEL], type=Header)
    except (ValueError, KeyError, TypeError) as error:
        raise FileError(f"this is not a model file that coterie wrote ({error})") from error
    if header.version != VERSION:
        raise FileError(f"the model file has version {header.version!r}, this coterie reads {VERSION!r}")
    return header


def _check_same(header: Header, config: Config) -> None:
    theirs = (header.policy, header.parameters, header.dimensions)
    ours = (config.policy, config.parameters, config.dimensions)
    if theirs != ours:
        raise FileError(
            f"the model file is of policy {theirs[0]!r} with {theirs[1]} and {theirs[2]} dimensions, the service "
            f"runs {ours[0]!r} with {ours[1]} and {ours[2]}; configure the service like the file first"
        )


def _numbers(names: Mapping[str, str], bandit: Bandit) -> dict[str, int]:
    """Return the number that each of the file's users has here; new users get the next numbers."""
    if len(set(names.values())) != len(names):
        raise FileError("a user appears twice in the model file")
    if len(bandit.names.keys() | set(names.values())) > bandit.config.max_users:
        raise FileError(f"with the model file's users there would be more than {bandit.config.max_users}")
    found, after = {}, bandit.next_user
    for old, name in names.items():
        if not is_id(name):
            raise FileError(f"a user in the model file is called {name[:80]!r}, {RULE}")
        found[old] = bandit.names.get(name, after)
        after += found[old] == after
    return found


def _part(
    kind: Kind, tensors: Tensors, header: Header, number_of: Mapping[str, int], config: Config
) -> tuple[int, bytes]:
    """Return what one policy learned, with its users renumbered; raise if it cannot be restored."""
    own = {k.removeprefix(f"{kind}."): v for k, v in tensors.items() if k.startswith(f"{kind}.")}
    own = {name: _renumbered(_without_tiny(tensor), number_of) for name, tensor in own.items()}
    policy = make_policy(config, kind)
    restore_policy(policy, own)
    items = unpack_ids(own, "items") if kind == "items" and "items" in own else []
    if len(items) > config.max_items:
        most = config.max_items
        raise FileError(f"the model file has {len(items)} items, expected at most {most} (max-items)")
    if not set(policy.users) <= set(number_of.values()) or not 0 <= header.learned[kind] < 2**53:
        raise FileError("the model file contradicts itself")
    return header.learned[kind], save({k: np.ascontiguousarray(v) for k, v in policy.tensors().items()})


def _without_tiny(tensor: NDArray[Any]) -> NDArray[Any]:
    """Return an array with 0 for numbers that are so small that a division by them may not be finite."""
    if tensor.dtype.kind != "f":
        return tensor
    return np.where((np.abs(tensor) < LEAST_STORED) & (tensor != 0), 0.0, tensor)  # -0.0 stays


def _renumbered(tensor: NDArray[Any], number_of: Mapping[str, int]) -> NDArray[Any]:
    """Return an array of packed users with their numbers here, and any other array unchanged.

    Users are numbers and items are text, so ids that are all numbers are users.
    """
    if tensor.dtype != np.uint8 or tensor.ndim != 1:
        return tensor
    try:
        ids = unpack_ids({"ids": tensor}, "ids")
    except FileError:
        return tensor
    if not all(isinstance(number, int) for number in ids):
        return tensor
    try:
        return pack_ids(number_of[str(number)] for number in ids)
    except KeyError as error:
        raise FileError(f"the model file does not name its user {error}") from error
