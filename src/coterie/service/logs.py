"""Structured logs: one JSON object per line, on stderr, with the event's id where there is one."""

import json
import logging
import sys
import time
from typing import Any

log = logging.getLogger("coterie.service")


class Lines(logging.Formatter):
    """Formats a record as one line of JSON. Keys and bodies of requests are never in it."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "at": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
            + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "message": record.getMessage(),
        }
        line.update(getattr(record, "fields", {}))
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=True, default=str)


def configure_logs(level: str) -> None:
    """Send our lines and uvicorn's to stderr as JSON."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Lines())
    for name in ("coterie.service", "uvicorn", "uvicorn.error", "opentelemetry"):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.setLevel(level.upper())
        logger.propagate = False
