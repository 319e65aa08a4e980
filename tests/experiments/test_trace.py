"""Traces: what they hold, and that a run goes on after any interruption as if there had been none."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import coterie
from coterie.data import rounds
from coterie.errors import FileError
from coterie.experiments import Run, parse_spec, read_header, read_trace, record
from coterie.experiments.run.record import locked, policy_path
from coterie.experiments.run.runs import code_files
from coterie.experiments.run.trace import write_trace
from coterie.experiments.run.worlds import make_world

ONE_HOT = {"kind": "one-hot", "n_users": 12, "n_items": 8, "n_candidates": 4, "turnover": 5.0}
DENSE = {"kind": "dense", "n_users": 12, "n_candidates": 4}
EVERY = 100


def make_run(
    spec: str = "cab", world: dict[str, object] = ONE_HOT, seed: int = 1, n_rounds: int = 450
) -> Run:
    return Run.of(parse_spec(spec), make_world(world), seed, n_rounds)


class KilledError(Exception):
    pass


def stop_at(n: int) -> Callable[[int], None]:
    def tick(done: int) -> None:
        if done >= n:
            raise KilledError

    return tick


def whole(run: Run, folder: Path) -> bytes:
    record(run, folder / "whole.parquet", every=EVERY)
    return (folder / "whole.parquet").read_bytes()


def test_a_trace_has_a_row_a_round_and_a_header_that_repeats_the_run(tmp_path: Path) -> None:
    run = make_run()
    before = whole(run, tmp_path)
    trace, header = read_trace(tmp_path / "whole.parquet"), read_header(tmp_path / "whole.parquet")
    assert trace["round"].to_list() == list(range(450))
    assert header["seed"] == 1
    assert header["n_rounds"] == 450
    assert header["made_with"]["coterie"] == coterie.__version__
    assert header["parameters"]["gamma"] == 0.2
    assert header["world"]["n_users"] == 12
    again = Run.from_header(header)
    record(again, tmp_path / "again.parquet", every=EVERY)
    assert (tmp_path / "again.parquet").read_bytes() == before
    assert not list(tmp_path.glob("*.partial"))


@pytest.mark.parametrize("spec", ["cab", "linucb-single", "linucb-multiple", "random"])
@pytest.mark.parametrize("world", [ONE_HOT, DENSE], ids=["one-hot", "dense"])
def test_a_run_interrupted_twice_has_the_trace_of_one_that_was_not(
    spec: str, world: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rounds, "STEP", 20)  # so that there are several commits: after at least EVERY rounds
    run, path = make_run(spec, world), tmp_path / "run.parquet"
    for stop in (150, 350):
        with pytest.raises(KilledError):
            record(run, path, every=EVERY, tick=stop_at(stop))
        assert not path.exists()
    done, last = list[int](), _commits(tmp_path / "run.parquet.partial")
    record(run, path, every=EVERY, tick=done.append)
    assert done[0] == last > 200  # went on from the last commit, not from the start
    assert path.read_bytes() == whole(run, tmp_path)


def test_a_run_killed_at_any_moment_goes_on(tmp_path: Path) -> None:
    """A real kill -9, several times, wherever it happens to hit."""
    run, path = make_run("cab:gamma=0.3", n_rounds=1_500), tmp_path / "run.parquet"
    script = (
        "import json, sys, time; from coterie.experiments import Run, record\n"
        "tick = lambda done: time.sleep(0.005)\n"
        f"record(Run(**json.loads(sys.argv[1])), sys.argv[2], every={EVERY}, tick=tick)"
    )
    partial = tmp_path / "run.parquet.partial"
    for more in (1, 2):
        target = _commits(partial) + more * EVERY
        child = subprocess.Popen([sys.executable, "-c", script, json.dumps(asdict(run)), str(path)])
        until = time.monotonic() + 300
        while _commits(partial) < target and child.poll() is None and time.monotonic() < until:
            time.sleep(0.001)
        child.send_signal(signal.SIGKILL)
        assert child.wait() == -signal.SIGKILL
    assert 300 <= _commits(partial) < 1_500
    record(run, path, every=EVERY)
    assert path.read_bytes() == whole(run, tmp_path)


def _commits(partial: Path) -> int:
    return max((int(file.stem) for file in partial.glob("0*.policy")), default=0)


def test_what_was_half_written_is_thrown_away(tmp_path: Path) -> None:
    run, path = make_run(), tmp_path / "run.parquet"
    with pytest.raises(KilledError):
        record(run, path, every=EVERY, tick=stop_at(250))
    partial = tmp_path / "run.parquet.partial"
    last = _commits(partial)
    assert last >= EVERY
    (partial / f"{last:012d}.parquet").write_bytes(b"PAR1 and then the power went")
    (partial / f".{last + EVERY:012d}.policy.77.tmp").write_bytes(b"\0")
    (partial / f"{last:012d}.parquet.77.tmp").write_bytes(b"\0")
    record(run, path, every=EVERY)
    assert path.read_bytes() == whole(run, tmp_path)


@pytest.mark.parametrize("victim", ["*.policy", "000000000000.parquet"])
def test_a_damaged_checkpoint_means_a_fresh_start_and_the_same_trace(victim: str, tmp_path: Path) -> None:
    run, path = make_run(), tmp_path / "run.parquet"
    with pytest.raises(KilledError):
        record(run, path, every=EVERY, tick=stop_at(250))
    [file] = (tmp_path / "run.parquet.partial").glob(victim)
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    record(run, path, every=EVERY)
    assert path.read_bytes() == whole(run, tmp_path)


def test_another_run_under_way_in_the_same_place_is_not_gone_on_with(tmp_path: Path) -> None:
    path = tmp_path / "run.parquet"
    with pytest.raises(KilledError):
        record(make_run(seed=2), path, every=EVERY, tick=stop_at(250))
    run = make_run(seed=1)
    record(run, path, every=EVERY)
    assert path.read_bytes() == whole(run, tmp_path)


def test_a_finished_trace_is_not_played_again_and_another_run_never_overwrites_it(tmp_path: Path) -> None:
    run = make_run()
    before = whole(run, tmp_path)
    path = tmp_path / "whole.parquet"
    record(run, path, tick=stop_at(0))
    with pytest.raises(FileError, match=r"holds another run \(seed=1\); move it away or name another path"):
        record(replace(run, seed=2), path)
    assert path.read_bytes() == before


def test_same_seed_same_trace_and_other_seed_other_trace(tmp_path: Path) -> None:
    first, other = make_run("random"), make_run("random", seed=2)
    record(first, tmp_path / "a.parquet")
    record(first, tmp_path / "b.parquet")
    record(other, tmp_path / "c.parquet")
    a, b, c = (read_trace(tmp_path / f"{name}.parquet") for name in "abc")
    assert a.equals(b)
    assert not a.equals(c)
    assert first.file_name() != other.file_name()


def test_the_trained_policy_lies_beside_the_trace(tmp_path: Path) -> None:
    whole(make_run(), tmp_path)
    policy = coterie.load(policy_path(tmp_path / "whole.parquet"))
    assert isinstance(policy, coterie.CAB)
    assert policy.users


def test_the_policys_own_randomness_is_not_that_of_the_rounds() -> None:
    assert make_run("random").parameters["seed"] != make_run("random").seed


def test_two_processes_never_record_the_same_run(tmp_path: Path) -> None:
    with (
        locked(tmp_path / "lock"),
        pytest.raises(FileError, match="another process is recording"),
        locked(tmp_path / "lock", timeout=0.1),
    ):
        pass


def test_files_that_are_no_traces_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="there is no trace at"):
        read_trace(tmp_path / "none.parquet")
    (tmp_path / "text.parquet").write_text("hello")
    with pytest.raises(FileError, match="not a readable Parquet file"):
        read_header(tmp_path / "text.parquet")
    whole(make_run(n_rounds=10), tmp_path)
    table = pq.read_table(tmp_path / "whole.parquet")
    pq.write_table(table.replace_schema_metadata({}), tmp_path / "bare.parquet")
    with pytest.raises(FileError, match="no coterie header"):
        read_header(tmp_path / "bare.parquet")
    pq.write_table(table.replace_schema_metadata({b"coterie": b'{"format": 99}'}), tmp_path / "later.parquet")
    with pytest.raises(FileError, match="has trace format 99, this coterie reads 1"):
        read_header(tmp_path / "later.parquet")


def test_a_trace_is_complete_or_absent(tmp_path: Path) -> None:
    """A disk that fails in the middle leaves neither a trace nor litter."""

    def broken() -> Iterator[pa.Table]:
        yield from ()
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_trace(tmp_path / "x.parquet", broken(), {"format": 1})
    assert os.listdir(tmp_path) == []


def test_the_fingerprint_covers_every_module_that_a_run_is_played_through() -> None:
    """From `record` on, follow the imports within experiments; only the lock has no say in what is written."""
    home = Path(coterie.__file__).parent / "experiments" / "run"
    found, waiting = set(), ["record"]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += re.findall(
                r"from coterie\.experiments\.run\.(\w+) import", (home / f"{name}.py").read_text()
            )
    covered = code_files()
    for name in found - {"lock"}:
        assert home / f"{name}.py" in covered, f"{name}.py writes traces, so WRITERS in runs.py must name it"
    assert all(path.exists() for path in covered)
