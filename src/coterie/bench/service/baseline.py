"""The baseline of the load test: the same bodies through Litestar, without a service behind it."""

import argparse
from typing import Any

import uvicorn
from litestar import Litestar, get, post
from litestar.params import JSONBody

from coterie.service.core.answers import Candidate, Ranking
from coterie.service.http.routes.decisions import RankBody
from coterie.service.listening import announce, listen, url_of
from coterie.service.personalizer.bodies import RankIn, RankOut
from coterie.service.serve import tune_garbage_collection


@post("/v1/rank", status_code=201)
async def rank(data: JSONBody[RankBody]) -> Ranking:
    """Answer with the first action, without a model."""
    chance = 1 / len(data.actions)
    ranking = [Candidate(action.id, chance) for action in data.actions]
    return Ranking(data.event_id or "none", data.actions[0].id, ranking)


@post("/personalizer/v1.0/rank", status_code=201)
async def compatible(data: JSONBody[RankIn]) -> RankOut:
    """Do the same in Personalizer's format."""
    chance = 1 / len(data.actions)
    ranking = [Candidate(action.id, chance) for action in data.actions]
    return RankOut(ranking, data.event_id or "none", data.actions[0].id)


@get("/readyz")
async def readyz() -> dict[str, str]:
    """Say that ranks are answered, as the service does."""
    return {"status": "ready"}


def main(arguments: list[str] | None = None) -> None:
    """Serve the endpoint on loopback."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0)
    options: Any = parser.parse_args(arguments)
    sockets = listen("127.0.0.1", options.port)
    app = Litestar([rank, compatible, readyz], openapi_config=None, logging_config=None)
    tune_garbage_collection()  # as the service does
    quiet: Any = {"access_log": False, "log_level": "warning", "ws": "none", "proxy_headers": False}
    announce(url_of(sockets, "127.0.0.1"))
    uvicorn.Server(uvicorn.Config(app, **quiet)).run(sockets)


if __name__ == "__main__":
    main()
