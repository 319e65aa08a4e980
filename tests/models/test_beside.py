"""Loops that run in Python until they are compiled: the same bits, and machine code takes over."""

import fcntl
import io
import math
import os
import pickle
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numba import config, njit

from coterie.arrays import Floats
from coterie.models._kernels import beside
from coterie.models._kernels.beside import COMMAND, MOST, VARIABLE, Beside
from coterie.models._kernels.jit import jit
from coterie.models._kernels.spd import invert
from coterie.models._kernels.users import simd
from coterie.models._kernels.users.simd import PANELS, WIDEST

pytestmark = pytest.mark.skipif(bool(config.DISABLE_JIT), reason="compares with machine code")

POLICIES = """
import pickle, sys
import numpy as np
from coterie.errors import MissingExtraError, ParameterError
from coterie.models._kernels import beside
from coterie.policies import POLICIES

beside.PATIENCE = 1e9
played = {}
more = {"hierarchical": [{"half_life": 3}], "cab": [{"thompson": True}, {"half_life": 3}],
        "linucb": [{"thompson": True}, {"half_life": 3}], "club": [{"thompson": True}]}
for name in sys.argv[1:] or sorted(set(POLICIES) - {"vw"}):
    for kind in ("one_hot", "n_features"):
        for settings in [{}, *([] if sys.argv[1:] else more.get(name, []))]:
            try:
                policy = POLICIES[name](**{kind: True if kind == "one_hot" else 5}, **settings)
            except (ParameterError, TypeError):  # for vectors only
                continue
            rng, choices = np.random.default_rng(3), []
            for _ in range(60):
                user = int(rng.integers(12))
                contexts = rng.normal(size=(4, 5))
                contexts /= 1.001 * np.linalg.norm(contexts, axis=1)[:, None]
                contexts = rng.permutation(8)[:4].tolist() if kind == "one_hot" else contexts
                choices.append(policy.choose(user, contexts))
                item = contexts[choices[-1]]
                payoff = (item + user) % 3 == 0 if kind == "one_hot" else item[user % 2]
                policy.learn(user, item, float(payoff))
            played[name, kind, str(settings)] = choices, {k: v.tobytes() for k, v in policy.tensors().items()}
pickle.dump((played, beside.BESIDE.spent), sys.stdout.buffer)
"""


def played(**environment: str) -> tuple[dict[Any, Any], float]:
    found = subprocess.run(
        [sys.executable, "-c", POLICIES],
        env={**os.environ, **environment},
        check=True,
        stdout=subprocess.PIPE,
    )
    return pickle.loads(found.stdout)  # type: ignore[no-any-return]  # noqa: S301


def test_every_policy_has_the_same_bits_in_python_and_in_machine_code(tmp_path: Path) -> None:
    in_python, spent = played(NUMBA_CACHE_DIR=str(tmp_path), **{VARIABLE: ""})
    compiled, not_spent = played()
    assert spent > 0
    assert not_spent == 0
    assert len(in_python) > 25
    assert in_python.keys() == compiled.keys()
    for name, found in in_python.items():
        assert found == compiled[name], name
    assert not list(tmp_path.rglob("*.nbc")), "Python refused something and the compiler was asked"


def wild(rng: np.random.Generator, *shape: int) -> Floats:
    """Return numbers of very different sizes, so that every rounding shows."""
    return rng.normal(size=shape) * 10.0 ** rng.integers(-6, 6, size=shape)


D = 7
BLOCKS: list[tuple[Callable[..., None], Callable[[np.random.Generator], list[Any]]]] = [
    (
        lambda p, c, o: simd.multiply(p.ctypes.data, c.ctypes.data, o.ctypes.data, 16, 300, WIDEST),
        lambda rng: [wild(rng, 300, 8), wild(rng, 300, WIDEST), np.zeros((WIDEST, 16))],
    ),
    (
        lambda p, c, o: simd.multiply_many(p.ctypes.data, c.ctypes.data, o.ctypes.data, 8 * PANELS, 300, 1),
        lambda rng: [wild(rng, PANELS, 300, 8), wild(rng, 300, 1), np.zeros((1, 8 * PANELS))],
    ),
    (
        lambda p, x, o: simd.apply_symmetric(p.ctypes.data, x.ctypes.data, o.ctypes.data, D),
        lambda rng: [wild(rng, D * (D + 1) // 2, 8), wild(rng, D), np.zeros((D, 8))],
    ),
    (
        lambda p, z, a, b, on: simd.subtract_outer(
            p.ctypes.data, z.ctypes.data, a.ctypes.data, b.ctypes.data, on.ctypes.data, D
        ),
        lambda rng: [
            wild(rng, D * (D + 1) // 2, 8),
            (1e-9 * wild(rng, D * (D + 1) // 2, 8)).astype(np.float32),
            wild(rng, D, 8),
            wild(rng, D, 8),
            (rng.random(8) > 0.5) * 1.0,
        ],
    ),
    (
        lambda o, r, f: simd.add_scaled(o.ctypes.data, r.ctypes.data, f.ctypes.data, D, 1),
        lambda rng: [wild(rng, D, 8), wild(rng, D, 8), wild(rng, 8)],
    ),
    (  # what is written overlaps what is read
        lambda o: simd.add_scaled(o.ctypes.data, o.ctypes.data + 64, o.ctypes.data, D - 1, 0),
        lambda rng: [wild(rng, D, 8)],
    ),
    (
        lambda a, b, o: simd.dot_rows(a.ctypes.data, b.ctypes.data, o.ctypes.data, D),
        lambda rng: [wild(rng, D, 8), wild(rng, D, 8), np.zeros(8)],
    ),
    (
        lambda a, b, o: simd.weigh_rows(a.ctypes.data, b.ctypes.data, o.ctypes.data, D),
        lambda rng: [wild(rng, D, 8), wild(rng, 8), wild(rng, D)],
    ),
]


@pytest.mark.parametrize(("block", "arguments"), BLOCKS)
def test_what_is_emitted_has_the_bits_of_its_python(
    block: Callable[..., None], arguments: Callable[[np.random.Generator], list[Any]]
) -> None:
    ours, theirs = arguments(np.random.default_rng(5)), arguments(np.random.default_rng(5))
    block(*ours)
    njit(block)(*theirs)
    for one, other in zip(ours, theirs, strict=True):
        assert one.tobytes() == other.tobytes()


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Beside]:
    """Return a state in which nothing was asked for and nothing is compiled."""
    monkeypatch.delenv(VARIABLE)
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(beside, "BESIDE", Beside())
    yield beside.BESIDE
    if beside.BESIDE.process is not None:
        beside.BESIDE.process.kill()
        beside.BESIDE.process.wait()


def log_of(x: Floats, by: float) -> float:
    x[0] += 1.0
    return math.log(by)


def test_what_python_refuses_is_done_once_by_machine_code(fresh: Beside) -> None:
    """log 0 is an error in Python, and -inf in machine code."""
    loop, x = jit(log_of), np.zeros(1)
    assert loop(x, 1.0) == 0
    assert not loop.signatures  # type: ignore[attr-defined]
    assert loop(x, 0.0) == -math.inf
    assert loop.signatures  # type: ignore[attr-defined]
    assert x[0] == 2


def test_a_loop_over_large_arrays_is_compiled_at_once(fresh: Beside) -> None:
    loop = jit(log_of)
    loop(np.zeros(MOST + 1), 1.0)
    assert loop.signatures  # type: ignore[attr-defined]
    assert not fresh.asked


def test_machine_code_takes_over(fresh: Beside, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beside, "PATIENCE", 0.0)
    loop: Any = jit(invert.py_func)  # type: ignore[attr-defined]
    matrix, found = np.array([[2.0, 1.0], [1.0, 3.0]]), []
    while not loop.signatures:
        inverse = np.empty((2, 2))
        found.append((loop(matrix.copy(), 2, np.empty((2, 2)), inverse), inverse.tobytes()))
        time.sleep(0.01)
    assert len(set(found)) == 1
    assert sum(loop.stats.cache_hits.values()) == 1, "it was compiled by the other process"


def test_if_no_process_can_be_started_the_loop_is_compiled_in_this_one(
    fresh: Beside, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise OSError("no more processes")

    monkeypatch.setattr(beside, "PATIENCE", 0.0)
    monkeypatch.setattr(beside, "_start", refuse)
    loop, x = jit(log_of), np.zeros(1)
    assert [loop(x, 1.0), loop(x, 1.0)] == [0, 0]
    assert loop.signatures  # type: ignore[attr-defined]


def test_the_process_that_compiles_ends_with_the_one_that_asked() -> None:
    assert subprocess.run([sys.executable, "-c", COMMAND], input=b"", check=True).returncode == 0


INVERT = """
import numpy as np
from coterie.models._kernels import beside
from coterie.models._kernels.spd import invert
beside.LONGEST = 1e9
print("ready", flush=True)
invert(np.eye(2), 2, np.empty((2, 2)), np.empty((2, 2)))
print(sum(invert.stats.cache_misses.values()))
"""


def test_two_processes_do_not_compile_the_same_loop(fresh: Beside, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "first")
    loop: Any = jit(invert.py_func)  # type: ignore[attr-defined]
    matrix = np.eye(2)
    with subprocess.Popen([sys.executable, "-c", INVERT], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        with beside._first_to_compile(loop):
            assert other.stdout.readline() == "ready\n"
            loop.compile(tuple(map(loop.typeof_pyval, (matrix, 2, matrix, matrix))))
        assert other.stdout.read() == "0\n", "it compiled what this process was compiling"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_is_told_once_how_much_is_compiled(fresh: Beside, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(beside, "QUIET", -1.0)
    jit(log_of)(np.zeros(MOST + 1), 1.0)
    said = terminal.getvalue()
    assert re.fullmatch(r"\rCompiling for this kind of data, once on this machine: 1 function, \d+ s\n", said)
    assert said.count("\n") == 1


def test_a_worker_process_does_not_write_into_the_progress_of_its_parent(
    fresh: Beside, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(beside, "QUIET", -1.0)
    monkeypatch.setattr("multiprocessing.parent_process", lambda: "another")
    jit(log_of)(np.zeros(MOST + 1), 1.0)
    assert terminal.getvalue() == ""


def test_a_process_that_is_stopped_while_it_compiles_stops_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(beside, "LONGEST", 0.1)
    with open(tmp_path / "lock", "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)  # as by another process: a lock belongs to an open file
        with beside.alone(tmp_path / "lock"):
            pass
    with (
        beside.alone(tmp_path / "lock"),
        open(tmp_path / "lock", "w") as other,
        pytest.raises(BlockingIOError),
    ):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
