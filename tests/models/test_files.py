"""Model files: whole or not at all, and never trusted."""

import json
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

import coterie
from coterie import CAB, LinUCB
from coterie.errors import FileError, ParameterError
from coterie.models.files import PolicyState, read_file, write_file


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    policy = CAB(n_features=3, alpha=0.2)
    policy.learn(("a", 1), [0.5, 0.5, 0.0], 1.0)
    policy.add("bob")
    policy.save(tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors"


def rewrite(path: Path, header: dict[str, str] | None = None, **tensors: Any) -> None:
    """Change parts of a file, as an attacker would, who can also leave out its checksum."""
    with safe_open(path, framework="numpy") as file:
        meta = dict(file.metadata())
    del meta["checksum"]
    save_file({**load_file(path), **tensors}, path, {**meta, **(header or {})})


def test_ids_of_many_kinds_come_back_as_they_were(tmp_path: Path) -> None:
    names: list[Any] = ["ann", "", 7, -1, 2.5, True, b"\x00\xff", ("a", (1, "b")), "ü\n\x00", 10**30]
    policy = CAB(one_hot=True)
    for name in names:
        policy.learn(name, ("item", name), 1.0)
    policy.save(tmp_path / "m")
    loaded = CAB.load(tmp_path / "m")
    assert set(loaded.users) == set(names)
    assert {type(name) for name in loaded.users} == {type(name) for name in names}


def test_an_id_that_a_file_cannot_hold_is_named_and_no_file_is_left(tmp_path: Path) -> None:
    policy = CAB(n_features=2)
    policy.add(frozenset({1}))
    with pytest.raises(
        FileError, match=r"the id frozenset\(\{1\}\) is a frozenset, which a file cannot hold"
    ):
        policy.save(tmp_path / "m")
    assert list(tmp_path.iterdir()) == []


def test_a_crash_while_saving_leaves_the_old_file_whole(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = saved.read_bytes()
    policy = CAB.load(saved)
    policy.learn("new", [1.0, 0.0, 0.0], 1.0)

    def crash(*_: Any) -> None:
        raise OSError("no space left on device")

    for name in ("replace", "fsync"):
        with monkeypatch.context() as patch:
            patch.setattr(os, name, crash)
            with pytest.raises(
                FileError, match="no space left on device; the old file, if any, is untouched"
            ):
                policy.save(saved)
        assert saved.read_bytes() == old
    assert [path.name for path in saved.parent.iterdir()] == [saved.name]


def test_every_truncation_is_refused(saved: Path, tmp_path: Path) -> None:
    whole = saved.read_bytes()
    cut = tmp_path / "cut"
    for size in range(0, len(whole), 7):
        cut.write_bytes(whole[:size])
        with pytest.raises(FileError, match=r"is not a whole model file|is damaged"):
            CAB.load(cut)


def test_every_flipped_bit_is_noticed_or_harmless(saved: Path, tmp_path: Path) -> None:
    """Harmless is a flip in the name of the checksum's field alone: the file then counts as one without it."""
    whole, flipped = saved.read_bytes(), tmp_path / "flipped"
    sound = read_file(saved, "cab")
    unnoticed = 0
    for place in range(len(whole)):
        for bit in (place % 8, (place + 3) % 8):
            damaged = bytearray(whole)
            damaged[place] ^= 1 << bit
            flipped.write_bytes(damaged)
            try:
                found = read_file(flipped, "cab")
            except FileError:
                continue
            unnoticed += 1
            assert (found.parameters, found.progress) == (sound.parameters, sound.progress)
            assert found.tensors.keys() == sound.tensors.keys()
            for name, tensor in found.tensors.items():
                np.testing.assert_array_equal(tensor, sound.tensors[name])
    assert unnoticed <= 2 * len("checksum")


def test_a_flipped_bit_in_what_was_learned_is_named(saved: Path) -> None:
    data = bytearray(saved.read_bytes())
    data[-9] ^= 1  # the lowest bit of a number: nothing else could tell
    saved.write_bytes(data)
    with pytest.raises(
        FileError, match=r"is damaged \(its checksum does not fit its content\); use an older"
    ):
        CAB.load(saved)


def test_a_file_of_an_earlier_version_has_no_checksum_and_is_read(saved: Path) -> None:
    sound = read_file(saved, "cab")
    rewrite(saved)
    found = read_file(saved, "cab")
    assert (found.parameters, found.progress) == (sound.parameters, sound.progress)
    assert CAB.load(saved).users == coterie.load(saved).users


def test_tensors_of_any_shape_have_a_checksum(tmp_path: Path) -> None:
    tensors = {"none": np.zeros((0, 3)), "flag": np.array([True]), "one": np.array(2.5), "few": np.eye(2)}
    write_file(tmp_path / "m", "any", PolicyState({}, {}, tensors))
    assert read_file(tmp_path / "m", "any").tensors.keys() == tensors.keys()
    write_file(tmp_path / "n", "any", PolicyState({}, {}, {}))
    assert read_file(tmp_path / "n", "any").tensors == {}


def test_hostile_lengths_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "m"
    path.write_bytes(struct.pack("<Q", 2**62) + b"{}")
    with pytest.raises(FileError, match="is not a whole model file"):
        coterie.load(path)
    header = json.dumps({"w": {"dtype": "F64", "shape": [2**40, 2**20], "data_offsets": [0, 8]}}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(8))
    with pytest.raises(FileError, match="is not a whole model file"):
        coterie.load(path)


def test_a_file_from_another_version_is_refused_by_name(saved: Path) -> None:
    rewrite(saved, {"version": "7"})
    with pytest.raises(FileError, match="has format version '7', this coterie reads version 1"):
        CAB.load(saved)


def test_foreign_files_are_refused(saved: Path, tmp_path: Path) -> None:
    with pytest.raises(FileError, match="there is no file"):
        CAB.load(tmp_path / "nothing")
    with pytest.raises(FileError, match="holds a policy named 'cab', not 'linucb'"):
        LinUCB.load(saved)
    save_file({"x": np.zeros(2)}, tmp_path / "foreign")
    with pytest.raises(FileError, match="but not one that coterie wrote"):
        coterie.load(tmp_path / "foreign")
    rewrite(saved, {"policy": "oracle"})
    with pytest.raises(FileError, match="holds a policy named 'oracle', which this coterie does not have"):
        coterie.load(saved)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("weights", np.zeros((9, 3)), r"tensor 'weights' in the model file is float64 \(9, 3\)"),
        ("weights", np.full((1, 3), np.nan), "tensor 'weights' in the model file holds NaN or infinity"),
        ("weights", np.zeros((1, 3), dtype=np.int64), "expected kind 'f'"),
        ("updated", np.frombuffer(b'["a","a"]', dtype=np.uint8), "an id appears twice"),
        ("updated", np.frombuffer(b'[{"eval":"1"}]', dtype=np.uint8), "unknown kind of id 'eval'"),
        ("updated", np.frombuffer(b"[[1]]", dtype=np.uint8), "a list is not an id"),
        ("updated", np.frombuffer(b"[1", dtype=np.uint8), "are damaged"),
    ],
)
def test_tensors_that_contradict_each_other_are_refused(
    saved: Path, name: str, value: Any, message: str
) -> None:
    rewrite(saved, None, **{name: value})
    with pytest.raises(FileError, match=message):
        CAB.load(saved)


@pytest.mark.parametrize(
    "header",
    [
        {"parameters": "[]"},
        {"parameters": "{"},
        {"parameters": '{"n_features": -1}'},
        {"parameters": '{"n_features": 3, "spin": 2}'},
        {"progress": "{}"},
        {"progress": '{"learned": "many"}'},
    ],
)
def test_damaged_settings_are_refused(saved: Path, header: dict[str, str]) -> None:
    rewrite(saved, header)
    with pytest.raises(FileError, match="is damaged"):
        CAB.load(saved)


def test_a_function_as_alpha_must_be_given_again(tmp_path: Path) -> None:
    policy = CAB(n_features=2, alpha=lambda t: 0.1)
    policy.learn("ann", [1.0, 0.0], 1.0)
    policy.save(tmp_path / "m")
    with pytest.raises(ParameterError, match=r"takes alpha=…, but got none"):
        CAB.load(tmp_path / "m")
    loaded = CAB.load(tmp_path / "m", alpha=lambda t: 0.1)
    assert loaded.explain("ann", np.eye(2)).score == pytest.approx(policy.explain("ann", np.eye(2)).score)
    with pytest.raises(ParameterError, match=r"but got \['gamma'\]"):
        CAB.load(tmp_path / "m", gamma=0.1)
