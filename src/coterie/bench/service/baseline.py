"""The baseline of the load test: the same bodies through Litestar, without a service behind it."""

import argparse
from typing import Any

import uvicorn
from litestar import Litestar, post
from litestar.params import JSONBody

from coterie.service.coordination.answers import Candidate, Ranking
from coterie.service.http.routes.decisions import RankBody
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


def main(arguments: list[str] | None = None) -> None:
    """Serve the endpoint on loopback."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    options: Any = parser.parse_args(arguments)
    app = Litestar([rank, compatible], openapi_config=None, logging_config=None)
    tune_garbage_collection()  # as the service does
    quiet: Any = {"access_log": False, "log_level": "warning", "ws": "none", "proxy_headers": False}
    uvicorn.run(app, host="127.0.0.1", port=options.port, **quiet)


if __name__ == "__main__":
    main()
