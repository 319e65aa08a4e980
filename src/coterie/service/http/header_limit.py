"""Headers that do not end: a connection is closed before they fill the memory.

The guard refuses headers beyond `max-headers` once they are whole. These never are, so they are counted while they
arrive.
"""

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from coterie.service.http.error_answers import closing_answer

CHUNK = 262_144  # bytes that may be read at once, with the end of the request before among them


class LimitedHeaders(HttpToolsProtocol):
    """A connection whose headers end, or are ended."""

    most: int  # bytes; set by what makes the connection
    _unfinished = False  # whether headers have begun and not ended
    _arrived = 0

    def data_received(self, data: bytes) -> None:
        """Read a part of a request, and count it if it is of headers."""
        super().data_received(data)
        if self._unfinished:
            self._arrived += len(data)
            if self._arrived > self.most + CHUNK and not self.transport.is_closing():
                message = f"the address and the headers have more than {self.most} bytes (max-headers)"
                self.transport.write(closing_answer(431, "headers_too_large", message, retry=False))
                self.transport.close()

    def on_message_begin(self) -> None:
        """Begin to count."""
        super().on_message_begin()
        self._unfinished, self._arrived = True, 0

    def on_headers_complete(self) -> None:
        """Stop counting."""
        self._unfinished = False
        super().on_headers_complete()
