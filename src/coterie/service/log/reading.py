"""Reading single decisions from the log: by position, or by event id through the store's index."""

from typing import final

import msgspec

from coterie.data.logs.records import Batch, Rank, Record, decode
from coterie.service.log.store import Store
from coterie.service.store_errors import keep_trying

PATIENCE = 10.0  # seconds


@final
class LogReader:
    """Finds records in the store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        # Neighbours are often read one after the other.
        self._last: tuple[Batch, list[msgspec.Raw]] | None = None

    def record(self, position: int) -> Record | None:
        """Return the record at a position, if the log still has it and it is not damaged."""
        batch, parts = self._last or (None, [])
        if batch is None or not batch.first <= position < batch.first + batch.count:
            batch = self._store.batch_at(position)
            if batch is None or not batch.is_sound():
                return None
            parts = batch.parts()
            self._last = batch, parts
        return decode(parts[position - batch.first])

    def decision(self, position: int) -> Rank | None:
        """Return the decision at a position, if the log still has it; a store that is away is waited for.

        It is read while a record is applied, which cannot be undone.
        """
        found = keep_trying(self.record, position, patience=PATIENCE)
        return found if isinstance(found, Rank) else None

    def locate(self, event: str) -> int | None:
        """Return where the decision of an event is."""
        return self._store.locate(event)

    def find(self, event: str) -> Rank | None:
        """Return the decision of an event."""
        position = self.locate(event)
        found = None if position is None else self.decision(position)
        return found if found is not None and found.event == event else None

    def free(self, event: str) -> bool:
        """Let an event be decided again if its decision cannot be read, though the index has it; says if so."""
        position = self.locate(event)
        if position is None or self.decision(position) is not None:
            return False
        self._store.drop_event(event, position)
        return True

    def forget_cache(self) -> None:
        """Forget what was read, after the log was rewritten."""
        self._last = None
