"""A check of SQLite's write-ahead log before SQLite opens it, because SQLite takes damage there for its end.

SQLite reads frames up to the first with a wrong checksum, and drops the rest silently. That is right for a torn tail:
what was being written when the power failed was not acknowledged. It is wrong when later transactions follow, because
each one began only after the one before was synced. So if a whole transaction follows the first bad frame, the file
is damaged, and the start must stop.
"""

import struct
from pathlib import Path

from coterie.errors import FileError

HEADER, FRAME = 32, 24
MAGIC = 0x377F0682


def check_wal(path: Path) -> None:
    """Raise if acknowledged transactions follow a damaged place in the file."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return
    if len(data) <= HEADER:
        return  # no frame was ever whole
    magic, _, size, _, salt1, salt2, sum1, sum2 = struct.unpack(">8I", data[:HEADER])
    words = ">" if magic & 1 else "<"
    sound = magic & ~1 == MAGIC and size in [2**k for k in range(9, 17)]
    if not sound or _sums(data[:24], words, 0, 0) != (sum1, sum2):
        raise _damage(path, 0, "its header is damaged")
    before = {(sum1, sum2)}  # what the next frame's checksum may continue from
    bad: int | None = None
    commits = 0  # after the bad frame
    step = FRAME + size
    for place in range(HEADER, len(data) - step + 1, step):
        _, commit, one, two, sum1, sum2 = struct.unpack(">6I", data[place : place + FRAME])
        frame = data[place : place + 8] + data[place + FRAME : place + step]
        mine = (one, two) == (salt1, salt2)
        fitting = {_sums(frame, words, *sums) for sums in before}
        if not (mine and (sum1, sum2) in fitting):
            if bad is None:
                bad = place
                # If both salts differ, the frame is left over from before SQLite last restarted the log.
                commits = int(commit != 0 and (one == salt1 or two == salt2))
        elif bad is not None:
            commits += commit != 0
        # After a bad frame, either its checksum or its content may be damaged.
        before = {(sum1, sum2)} if (sum1, sum2) in fitting else {(sum1, sum2), *list(fitting)[:2]}
        if bad is not None and commits >= 2:
            raise _damage(path, bad, "a frame there is damaged, and acknowledged transactions follow it")


def _sums(data: bytes, words: str, s0: int, s1: int) -> tuple[int, int]:
    numbers = struct.unpack(f"{words}{len(data) // 4}I", data)
    for k in range(0, len(numbers), 2):
        s0 = (s0 + numbers[k] + s1) & 0xFFFFFFFF
        s1 = (s1 + numbers[k + 1] + s0) & 0xFFFFFFFF
    return s0, s1


def _damage(path: Path, place: int, what: str) -> FileError:
    return FileError(
        f"{path} is damaged at byte {place}: {what}; restore a backup of the store, or accept the loss of what "
        f"lies behind: start once with `coterie store repair --store {str(path).removesuffix('-wal')}`"
    )
