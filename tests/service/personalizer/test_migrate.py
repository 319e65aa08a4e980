"""docs/migrate-from-personalizer.md, tried as a new user would: its commands and its code, as they stand."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from tests.service.process import SOURCE, address_in

PAGE = (Path(__file__).parents[3] / "docs" / "migrate-from-personalizer.md").read_text()


def coterie(command: str) -> list[str]:
    """Return the command as it stands on the page, run by this Python."""
    assert f"    {command}\n" in PAGE
    return [sys.executable, "-m", "coterie.cli", *command.split()[1:]]


def test_the_page_works_as_it_stands(tmp_path: Path) -> None:
    pytest.importorskip("azure.ai.personalizer")
    pytest.importorskip("azure.cognitiveservices.personalizer")
    pytest.importorskip("typer")
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "NO_COLOR": "1", "COLUMNS": "200"}
    make = coterie("coterie keys new my-app --scope decide --scope read --scope admin --store coterie.db")
    made = subprocess.run(make, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    (key,) = re.findall(r"ck_[\w-]+", made.stdout)
    serve = [*coterie("coterie serve --store coterie.db"), "--port", "0"]
    with (tmp_path / "said").open("wb") as said:
        server = subprocess.Popen(serve, cwd=tmp_path, env=environment, stdout=said)
    try:
        url = address_in(tmp_path / "said", server)
        wait_for(url, server)
        code = "\n".join(re.findall(r"```py\n(.*?)```", PAGE, re.S))
        ran = subprocess.run(
            [sys.executable, "-c", code],
            cwd=tmp_path,
            env={**environment, "PERSONALIZER_ENDPOINT": url, "PERSONALIZER_KEY": key},
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.returncode == 0, ran.stderr
        assert "NewsArticle" in ran.stdout
        shown = next(line for line in PAGE.splitlines() if line.startswith("print(admin.get_policy())"))
        assert shown.partition("# ")[2] in ran.stdout
        headers = {"X-API-Key": key}
        users = httpx.get(f"{url}/v1/users", headers=headers).json()["users"]
        assert {user["id"]: user["learned"] for user in users} == {"ann": 1, "bob": 1}
        assert httpx.get(url).status_code == 200
    finally:
        server.terminate()
        server.wait(300)
    assert server.returncode == 0


def wait_for(url: str, server: "subprocess.Popen[bytes]") -> None:
    end = time.monotonic() + 300
    while time.monotonic() < end and server.poll() is None:
        try:
            if httpx.get(f"{url}/readyz").status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.05)
    raise AssertionError("the service did not start")


def test_every_compatible_route_is_on_the_page() -> None:
    for name in (
        "/configurations/service",
        "/configurations/policy",
        "/model",
        "/logs/properties",
        "/logs/interactions",
        "/logs/observations",
        "/personalizer/v1.1-preview.3/",
        "/evaluations",
        "/configurations/applyFromEvaluation",
        "/featureImportances",
    ):
        assert name in PAGE
