"""The functions that answer a rank stay short: at most 60 lines and 7 parameters, without `self`."""

import threading
from pathlib import Path
from types import CodeType
from typing import Any

import coterie
from tests.service.helpers import served

LINES, PARAMETERS = 60, 7
ROOT = str(Path(coterie.__file__).parent)
BODY = {
    "user": "ann",
    "actions": [{"id": name, "features": [{"tone": name}], "cost": 1} for name in "abc"],
    "context": [{"hour": 3}],
    "excluded": ["c"],
}


def functions_of_a_rank(path: Path) -> set[CodeType]:
    """Return the code of all our functions that run while a service answers a rank, in any thread of it."""
    found: set[CodeType] = set()
    asking = False

    def watch(frame: Any, event: str, _: Any) -> None:
        if asking and event == "call" and frame.f_code.co_filename.startswith(ROOT):
            found.add(frame.f_code)

    threading.setprofile(watch)  # of threads that start from here on
    try:
        with served(path) as (client, _):
            for event in ("first", "second"):  # before and after something was learned
                asking = True
                assert client.post("/v1/rank", json=BODY | {"eventId": event}).status_code == 201
                asking = False
                client.post(f"/v1/events/{event}/reward", json={"value": 1})
    finally:
        threading.setprofile(None)
    return found


def lines_of(code: CodeType) -> int:
    return max(line for *_, line in code.co_lines() if line is not None) - code.co_firstlineno + 1


def parameters_of(code: CodeType) -> int:
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    return len(names) - (names[:1] in (("self",), ("cls",)))


def test_functions_on_the_path_of_a_rank_are_short(tmp_path: Path) -> None:
    found = functions_of_a_rank(tmp_path / "log.db")
    names = {code.co_qualname for code in found}
    assert {
        "Guard.__call__",
        "question_in",
        "Coordinator.rank",
        "Bandit.apply",
        "Hierarchical.decide",
    } <= names
    assert {"decide", "ranking_of", "Sequencer._append", "Decision.__init__"} <= names
    long = {code.co_qualname: lines_of(code) for code in found if lines_of(code) > LINES}
    many = {code.co_qualname: parameters_of(code) for code in found if parameters_of(code) > PARAMETERS}
    assert not long, long
    assert not many, many
