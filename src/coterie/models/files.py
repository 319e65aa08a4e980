"""Model files: safetensors with a version and a checksum, written atomically. Loading one never runs code."""

import base64
import json
import os
import zlib
from collections.abc import Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from coterie.arrays import Array, JsonObject
from coterie.errors import FileError
from coterie.models.ranges import MOST_COUNTED, MOST_STORED

VERSION = 1
CHECKSUM = "checksum"  # its name in a file's metadata

Tensors: TypeAlias = dict[str, Array]


class PolicyState(NamedTuple):
    """A policy as plain data."""

    parameters: JsonObject  # of its constructor
    progress: JsonObject  # the number of payoffs, the state of the random stream
    tensors: Tensors  # what it learned


def write_file(path: str | os.PathLike[str], policy: str, state: PolicyState) -> None:
    """Write `state` to `path` atomically: a crash leaves the old file or the new one."""
    target = Path(path)
    header = {
        "format": "coterie",
        "version": str(VERSION),
        "policy": policy,
        "parameters": json.dumps(state.parameters),
        "progress": json.dumps(state.progress),
    }
    tensors = {name: np.ascontiguousarray(tensor) for name, tensor in state.tensors.items()}
    try:
        with written_whole(target) as draft:
            save_file(tensors, draft, {**header, CHECKSUM: content_checksum(header, tensors)})
    except (OSError, SafetensorError) as error:
        raise FileError(f"cannot write {target}: {error}; the old file, if any, is untouched") from error


def content_checksum(metadata: Mapping[str, str], tensors: Tensors) -> str:
    """Return a checksum of a file's metadata and tensors.

    It is a CRC-32, which notices every flipped bit and takes less time than writing the file.
    """
    found = zlib.crc32(json.dumps(sorted(metadata.items())).encode())
    for name, tensor in sorted(tensors.items()):
        found = zlib.crc32(json.dumps([name, tensor.dtype.str, tensor.shape]).encode(), found)
        found = zlib.crc32(tensor.reshape(-1).view(np.uint8).data, found)
    return f"{found:08x}"


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """Return a draft to write to, next to `path`; after the block it replaces `path`."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield draft
        publish(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def publish(draft: Path, path: Path) -> None:
    """Rename a complete file, so that a crash leaves the old file or the new one."""
    sync_path(draft)
    draft.replace(path)
    sync_path(path.parent)


def sync_path(path: Path) -> None:
    """Write a file, or the names in a folder, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read_policy_name(path: str | os.PathLike[str]) -> str:
    """Return the name of the policy in a file."""
    return _header(path)["policy"]


def read_file(path: str | os.PathLike[str], policy: str) -> PolicyState:
    """Read a file of `policy`. Raises FileError if it is damaged or holds another policy."""
    header = _header(path)
    if header["policy"] != policy:
        raise FileError(
            f"{path} holds a policy named {header['policy']!r}, not {policy!r}; coterie.load() takes any"
        )
    try:
        with safe_open(path, framework="numpy") as file:
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (not a dict)
        rest = {name: value for name, value in header.items() if name != CHECKSUM}
        if CHECKSUM in header and header[CHECKSUM] != content_checksum(rest, tensors):
            raise ValueError("its checksum does not fit its content")
        parameters, progress = json.loads(header["parameters"]), json.loads(header["progress"])
        if not isinstance(parameters, dict) or not isinstance(progress, dict):
            raise ValueError("its parameters are not an object")
    except (OSError, SafetensorError, ValueError, TypeError) as error:
        raise FileError(f"{path} is damaged ({error}); use an older copy") from error
    return PolicyState(parameters, progress, tensors)


def _header(path: str | os.PathLike[str]) -> dict[str, str]:
    try:
        with safe_open(path, framework="numpy") as file:
            header = dict(file.metadata() or {})
    except FileNotFoundError as error:
        raise FileError(f"there is no file {path}") from error
    except (OSError, SafetensorError) as error:
        raise FileError(
            f"{path} is not a whole model file ({error}); it was cut short, damaged, or is something else"
        ) from error
    if header.get("format") != "coterie" or not {"policy", "parameters", "progress"} <= header.keys():
        raise FileError(f"{path} is a safetensors file, but not one that coterie wrote")
    if header.get("version") != str(VERSION):
        raise FileError(
            f"{path} has format version {header.get('version')!r}, this coterie reads version {VERSION}; "
            "read it with the coterie that wrote it"
        )
    return header


def take(
    tensors: Tensors, name: str, kind: str, shape: tuple[int | None, ...], most: float = MOST_STORED
) -> Array:
    """Return a tensor, after checking its dtype kind, its shape (None is any length) and the size of its numbers.

    `most` is the largest fraction allowed.
    """
    tensor = tensors.get(name)
    if tensor is None:
        raise FileError(f"the model file lacks the tensor {name!r}")
    fits = tensor.ndim == len(shape) and all(
        want in (None, have) for want, have in zip(shape, tensor.shape, strict=True)
    )
    if tensor.dtype.kind != kind or not fits:
        raise FileError(
            f"tensor {name!r} in the model file is {tensor.dtype} {tensor.shape}, expected kind {kind!r} "
            f"and shape {shape}"
        )
    if kind == "f" and not np.isfinite(tensor).all():
        raise FileError(f"tensor {name!r} in the model file holds NaN or infinity")
    if kind == "f" and not np.abs(tensor).max(initial=0).item() <= most:
        raise FileError(f"tensor {name!r} in the model file holds a number above {most:g}")
    if kind == "i" and not -MOST_COUNTED <= tensor.min(initial=0) <= tensor.max(initial=0) <= MOST_COUNTED:
        raise FileError(f"tensor {name!r} in the model file holds a count above {MOST_COUNTED:g}")
    return tensor


_PLAIN = {int, str}


def pack_ids(ids: Iterable[Hashable]) -> NDArray[np.uint8]:
    """Return ids as JSON in an array of bytes; their types are preserved."""
    names = list(ids)
    if not set(map(type, names)) <= _PLAIN:  # plain ids need no conversion, which is ten times as fast
        names = [to_json(name) for name in names]
    text = json.dumps(names, separators=(",", ":"))
    return np.frombuffer(text.encode(), dtype=np.uint8)


def unpack_ids(tensors: Tensors, name: str) -> list[Hashable]:
    """Return the ids that `pack_ids` wrote, after checking that all differ."""
    try:
        found = [_from_json(value) for value in json.loads(take(tensors, name, "u", (None,)).tobytes())]
        if len(set(found)) != len(found):
            raise ValueError("an id appears twice")
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise FileError(f"the ids under {name!r} in the model file are damaged ({error})") from error
    return found


def to_json(name: Hashable) -> Any:
    """Return an id as JSON; its type is preserved."""
    if isinstance(name, np.generic):
        name = name.item()
    if name is None or isinstance(name, bool | int | str):
        return name
    if isinstance(name, float):
        return {"float": name.hex()}
    if isinstance(name, bytes):
        return {"bytes": base64.b64encode(name).decode()}
    if type(name) is tuple:
        return {"tuple": [to_json(part) for part in name]}
    raise FileError(
        f"the id {name!r} is a {type(name).__name__}, which a file cannot hold; "
        "use str, int, float, bytes, bool, None or tuples of these"
    )


def _from_json(value: Any) -> Hashable:
    if not isinstance(value, dict):
        if isinstance(value, list):
            raise ValueError("a list is not an id")
        return value  # type: ignore[no-any-return]
    ((kind, content),) = value.items()
    if kind == "float":
        return float.fromhex(content)
    if kind == "bytes":
        return base64.b64decode(content, validate=True)
    if kind == "tuple":
        return tuple(_from_json(part) for part in content)
    raise ValueError(f"unknown kind of id {kind!r}")


def pack_attributes(values: Mapping[str, Any]) -> Tensors:
    """Return plain data by name as arrays: arrays as they are; numbers, ids, lists and dicts of these as JSON."""
    arrays = {name: value for name, value in values.items() if isinstance(value, np.ndarray)}
    plain = {name: _plain(value) for name, value in values.items() if name not in arrays}
    return {**arrays, "attributes": np.frombuffer(json.dumps(plain).encode(), dtype=np.uint8)}


def unpack_attributes(tensors: Tensors) -> JsonObject:
    """Return what `pack_attributes` packed."""
    try:
        plain = json.loads(take(tensors, "attributes", "u", (None,)).tobytes())
        found = {name: _not_plain(value) for name, value in plain.items()}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise FileError(f"the attributes in the model file are damaged ({error})") from error
    return {**found, **{name: array.copy() for name, array in tensors.items() if name != "attributes"}}


def _plain(value: Any) -> Any:
    """Return plain data as JSON; types are preserved, also of the keys of a dict."""
    if isinstance(value, dict):
        return {"dict": [[to_json(key), _plain(inner)] for key, inner in value.items()]}
    return {"list": list(map(_plain, value))} if isinstance(value, list) else to_json(value)


def _not_plain(value: Any) -> Any:
    if isinstance(value, dict) and "dict" in value:
        return {_from_json(key): _not_plain(inner) for key, inner in value["dict"]}
    return (
        list(map(_not_plain, value["list"]))
        if isinstance(value, dict) and "list" in value
        else _from_json(value)
    )
