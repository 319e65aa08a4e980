"""How the service sends its log to the process that evaluates it.

This is apart from the worker, which imports SciPy's statistics: a service need not load them.
"""

import struct
from collections.abc import Iterable, Iterator
from typing import IO

from coterie.data.logs.records import Batch

FRAME = struct.Struct(">qqIqi")  # first, count, bytes, checksum and version of a batch


def write_batches(batches: Iterable[Batch], file: IO[bytes]) -> None:
    """Write the log's batches, and close the file."""
    for batch in batches:
        file.write(FRAME.pack(batch.first, batch.count, len(batch.body), batch.checksum, batch.version))
        file.write(batch.body)
    file.close()


def read_batches(file: IO[bytes]) -> Iterator[Batch]:
    """Yield the batches that `write_batches` wrote."""
    while head := file.read(FRAME.size):
        first, count, size, checksum, version = FRAME.unpack(head)
        yield Batch(first, count, file.read(size), checksum, version)
