"""Answers before machine code exists: loops run in Python until a process beside this one has compiled them.

Numba compiles the loops of a policy once per machine, which takes up to a minute. Python takes milliseconds for a
decision, and gives the same bits, so machine code may take over between any two calls. Loops over so many numbers
that Python would take longer than the compiler are compiled at once.
"""

import multiprocessing
import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numba import _dispatcher
from numba.core import event
from numpy.random import Generator

with suppress(ImportError):  # not on Windows
    import fcntl

VARIABLE = "COTERIE_COMPILE"  # "first": compile before the first answer
MOST = 200_000  # numbers in the arguments of a loop that runs in Python
PATIENCE = 1.0  # seconds in Python, of all loops together, before the process beside this one is started
LONGEST = 20.0  # seconds that a process waits for another one to compile a loop
QUIET = 2.0  # seconds of compiling before the terminal says so
COMMAND = "from coterie.models._kernels.beside import compile_for_another; compile_for_another()"

_thread = threading.local()  # `python`: whether a loop runs in Python in this thread
Key = tuple[Any, tuple[Any, ...]]  # a loop and the types of its arguments


class Beside:
    """The process that compiles, and what it was asked for."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.spent = 0.0  # seconds in Python
        self.asked: list[Key] = []
        self.ready: set[Key] = set()  # machine code is on the disk, or the loop has to be compiled here
        self.process: subprocess.Popen[bytes] | None = None

    def ask(self, key: Key) -> bool:
        """Return whether a loop has machine code; ask for it otherwise."""
        with self.lock:
            if key not in self.ready and key not in self.asked:
                if _is_kept(*key):
                    self.ready.add(key)
                else:
                    self.asked.append(key)
                    self._send(key)
            return key in self.ready

    def spend(self, seconds: float) -> None:
        """Count time spent in Python. After PATIENCE, start to compile."""
        with self.lock:
            self.spent += seconds
            if self.process is not None or self.spent < PATIENCE:
                return
            try:
                self.process = _start()
            except OSError:  # no process can be started: the loops are compiled in this one, when next called
                self.ready.update(self.asked)
                self.spent = 0.0
                return
            threading.Thread(target=self._listen, args=(self.process,), daemon=True).start()
            for key in self.asked:
                self._send(key)

    def _send(self, key: Key) -> None:
        if self.process is not None and self.process.stdin is not None:
            loop, types = key
            with suppress(OSError):  # it has ended; `_listen` notices
                pickle.dump((loop.__module__, loop.__qualname__, types), self.process.stdin)
                self.process.stdin.flush()

    def _listen(self, process: subprocess.Popen[bytes]) -> None:
        """Wait for one line per loop, in order. If the process ends early, the rest is compiled in this one."""
        assert process.stdout is not None
        done = sum(1 for _ in map(self._take_over, process.stdout))
        with self.lock:
            self.ready.update(self.asked[done:])

    def _take_over(self, line: bytes) -> None:
        with self.lock:
            self.ready.add(self.asked[int(line)])


BESIDE = Beside()


def _forget() -> None:
    """A process made by fork starts anew: the other one belongs to its parent."""
    global BESIDE
    BESIDE = Beside()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def run_in_python_first(loop: Any, most: float) -> None:
    """Let a compiled function run in Python until there is machine code for the types of its arguments.

    It is compiled at once if its arrays hold more than `most` numbers.
    """
    compile_here, shorten = loop._compile_for_args, _dispatcher.compute_fingerprint
    keys: dict[bytes, Key] = {}  # by Numba's short form of the types, which is found faster

    def with_word(*arguments: Any) -> Any:
        with _say_if_slow(), _first_to_compile(loop):
            return compile_here(*arguments)

    def choose_code(*arguments: Any, **_: Any) -> Any:
        """Return what runs now: Numba calls this if it has no machine code for the arguments in memory."""
        if getattr(_thread, "python", False):
            return loop.py_func
        if os.environ.get(VARIABLE) == "first" or _size(arguments) > most:
            return with_word(*arguments)
        short = shorten(tuple(a for a in arguments if not isinstance(a, Generator)))
        if short not in keys:
            keys[short] = loop, tuple(map(loop.typeof_pyval, arguments))
        if BESIDE.ask(keys[short]):
            return with_word(*arguments)
        return partial(_run, loop, with_word, most <= MOST)

    loop._compile_for_args = choose_code


def _run(loop: Any, compile_here: Callable[..., Any], undo: bool, *arguments: Any) -> Any:
    """Run a loop in Python.

    Python refuses a few things that machine code does not, such as a division by zero. Then, with `undo`, what was
    changed is restored and machine code does the work. For large arrays the copy would take too long.
    """
    arrays = [array for array in _arrays(arguments) if array.flags.writeable] if undo else []
    streams = [a.bit_generator for a in arguments if isinstance(a, Generator)] if undo else []
    before = [array.copy() for array in arrays], [stream.state for stream in streams]
    start = time.perf_counter()
    _thread.python = True
    try:
        with np.errstate(all="ignore"):
            return loop.py_func(*map(_with_fields, arguments))
    except (ArithmeticError, ValueError):
        if not undo:
            raise
    finally:
        _thread.python = False
        BESIDE.spend(time.perf_counter() - start)
    for array, was in zip(arrays, before[0], strict=True):
        array[...] = was
    for stream, state in zip(streams, before[1], strict=True):
        stream.state = state
    return compile_here(*arguments)(*arguments)


class Record(np.void):  # type: ignore[misc]
    """An element of an array of records, with its fields as attributes, as compiled loops have it."""

    def __getattribute__(self, name: str) -> Any:
        get = super().__getattribute__
        return self[name] if name in get("dtype").names else get(name)

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value


def _arrays(value: Any) -> Iterator[Any]:
    """Yield the arrays of nested tuples."""
    if isinstance(value, np.ndarray):
        yield value
    elif isinstance(value, tuple):
        for part in value:
            yield from _arrays(part)


def _size(arguments: tuple[Any, ...]) -> int:
    return sum(array.size for array in _arrays(arguments))


def _with_fields(value: Any) -> Any:
    """Return arrays of records with `Record` as elements."""
    if isinstance(value, np.ndarray):
        return value.view(np.dtype((Record, value.dtype))) if value.dtype.names else value
    if isinstance(value, tuple) and any(array.dtype.names for array in _arrays(value)):
        parts = map(_with_fields, value)
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return value


def _is_kept(loop: Any, types: tuple[Any, ...]) -> bool:
    """Return whether the machine code is on the disk."""
    cache = loop._cache
    return cache._index_key(types, loop.targetctx.codegen()) in cache._cache_file._load_index()


def _start() -> "subprocess.Popen[bytes]":
    """Start the process that compiles. It ends with this one: its input is then closed."""
    return subprocess.Popen(
        [sys.executable, "-P", "-c", COMMAND],
        env={**os.environ, VARIABLE: "first", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # Control-C is for the program, not for this one
    )


def compile_for_another() -> None:
    """Compile what the standard input asks for, and answer with a number per loop; the first is 0."""
    with suppress(OSError, AttributeError):
        os.nice(5)
    wanted: list[Any] = []
    news = threading.Semaphore(0)

    def read() -> None:
        with suppress(EOFError):
            while True:
                wanted.append(pickle.load(sys.stdin.buffer))  # noqa: S301 - from the process that started this one
                news.release()
        os._exit(0)  # in the middle of a compilation, too; files are complete or not there

    threading.Thread(target=read, daemon=True).start()
    done = 0
    while news.acquire():
        module, name, types = wanted[done]
        with suppress(Exception):  # the other process compiles it, and raises what there is to raise
            loop = getattr(import_module(module), name)
            with _first_to_compile(loop):
                loop.compile(types)
        print(done, flush=True)
        done += 1


def _first_to_compile(loop: Any) -> AbstractContextManager[None]:
    """Let one process compile a loop, while others that need it wait and then find the machine code on the disk."""
    file = loop._cache._cache_file
    return alone(Path(file._cache_path) / f"{file._index_name}.lock")


@contextmanager
def alone(lock: Path) -> Iterator[None]:
    """Wait until no other process holds a lock, and hold it. Windows has none.

    After LONGEST seconds go on without: whoever holds it may have been stopped. Then two compile the same.
    """
    with open(lock, "w") as held:
        end = time.monotonic() + LONGEST
        while "fcntl" in globals():
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > end:
                    break
                time.sleep(0.01)
        yield


@contextmanager
def _say_if_slow() -> Iterator[None]:
    """Say on the terminal that loops are compiled, if it takes longer than QUIET, and how many were."""
    worker = multiprocessing.parent_process() is not None  # the parent shows the progress of its workers
    if worker or not sys.stderr.isatty() or getattr(_thread, "says", False):
        yield
        return
    begin, n_compiled = time.perf_counter(), 0

    class Counter(event.Listener):  # type: ignore[misc]
        def on_start(self, _: Any) -> None: ...

        def on_end(self, _: Any) -> None:
            nonlocal n_compiled
            if time.perf_counter() - begin > QUIET:
                n_compiled += 1
                text = f"\rCompiling for this kind of data, once on this machine: {n_compiled} function"
                text += "s" if n_compiled > 1 else ""
                print(text, end="", file=sys.stderr, flush=True)

    counter = Counter()
    _thread.says = True
    event.register("numba:compile", counter)
    try:
        yield
    finally:
        _thread.says = False
        event.unregister("numba:compile", counter)
        if n_compiled:
            print(f", {time.perf_counter() - begin:.0f} s", file=sys.stderr)
