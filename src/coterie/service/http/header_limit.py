"""Limits headers while they arrive: a connection is closed before endless headers fill the memory.

The guard checks `max-headers` only when the headers are complete.
"""

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from coterie.service.http.error_answers import closing_answer

CHUNK = 262_144  # bytes that one read may return, possibly with the end of the request before


class LimitedHeaders(HttpToolsProtocol):
    """A connection that is closed if its headers are too large."""

    most: int  # bytes; set by the subclass
    _unfinished = False  # whether headers have begun and not ended
    _arrived = 0

    def data_received(self, data: bytes) -> None:
        """Read a part of a request, and count the bytes of headers."""
        super().data_received(data)
        if self._unfinished:
            self._arrived += len(data)
            if self._arrived > self.most + CHUNK and not self.transport.is_closing():
                message = f"the address and the headers have more than {self.most} bytes (max-headers)"
                self.transport.write(closing_answer(431, "headers_too_large", message, retry=False))
                self.transport.close()

    def on_message_begin(self) -> None:
        """Start counting."""
        super().on_message_begin()
        self._unfinished, self._arrived = True, 0

    def on_headers_complete(self) -> None:
        """Stop counting."""
        self._unfinished = False
        super().on_headers_complete()
