"""What deploy/ promises, as far as it can be seen without a container engine."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from contextlib import suppress
from importlib import metadata
from pathlib import Path

import httpx
import pytest
import yaml  # type: ignore[import-untyped]
from litestar.testing import TestClient
from packaging.requirements import Requirement
from prometheus_client.parser import text_string_to_metric_families

from coterie.cli.app import COMMANDS, read_command
from coterie.data.logs.rules import Config
from coterie.service.log.sqlite_store import SqliteStore
from coterie.service.serve import make_app
from coterie.service.settings import Settings, read_settings
from tests.service.process import SOURCE, address_in

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "deploy"
UNITS = ["coterie@.service", "coterie-backup@.service"]


# The image.


def instructions() -> list[list[tuple[str, str]]]:
    """Return the stages of the Dockerfile, each as instructions with their arguments."""
    text = re.sub(r"^\s*#.*\n", "", (DEPLOY / "Dockerfile").read_text(), flags=re.MULTILINE)
    lines = [line.strip() for line in re.sub(r"\\\n", " ", text).splitlines() if line.strip()]
    stages: list[list[tuple[str, str]]] = []
    base = ""
    for line in lines:
        name, _, rest = line.partition(" ")
        if name == "ARG":
            base = rest.removeprefix("BASE=")
            continue
        if name == "FROM":
            stages.append([])
            rest = rest.replace("${BASE}", base)
        stages[-1].append((name, " ".join(rest.split())))
    return stages


def image(name: str) -> str:
    """Return the argument of an instruction of the last stage."""
    found = [rest for instruction, rest in instructions()[-1] if instruction == name]
    assert len(found) == 1, f"{name} stands {len(found)} times in the last stage"
    return found[0]


def environment_of_image() -> dict[str, str]:
    return dict(part.split("=", 1) for part in shlex.split(image("ENV")))


def test_the_image_is_of_a_fixed_version_and_its_user_is_not_root() -> None:
    for stage in instructions():
        kind, base = stage[0]
        assert kind == "FROM"
        assert re.fullmatch(r"python:3\.\d+-slim-\w+( AS build)?", base)
    user = image("USER")
    assert int(user) > 1000
    assert f"--uid {user}" in image("RUN")
    order = [name for name, _ in instructions()[-1]]
    assert order.index("RUN") < order.index("USER") < order.index("ENTRYPOINT")


def test_the_image_is_made_of_files_that_are_there_and_not_ignored() -> None:
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text().split()
    assert ignored[0] == "*"
    taken = []
    for name, rest in instructions()[0]:
        if name == "COPY":
            taken += rest.split()[:-1]
    for path in taken:
        assert (ROOT / path).exists(), path
        assert f"!{path}" in ignored
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert {needed["project"]["readme"], *needed["project"]["license-files"], "hatch_build.py", "src"} <= set(
        taken
    )


IMAGE = {"python_version": "3.13", "python_full_version": "3.13.0", "sys_platform": "linux"}
PIN = re.compile(r"^([\w.-]+)==(\S+)((?: \\\n    --hash=sha256:[0-9a-f]{64})+)$", re.MULTILINE)


def test_the_image_installs_pinned_packages_with_hashes_and_nothing_else() -> None:
    """Every package that the extras need is there, with the version of constraints.txt, and no address is named."""
    runs = [rest for name, rest in instructions()[0] if name == "RUN"]
    lines = (ROOT / "constraints.txt").read_text().lower().replace("_", "-").split()
    pins = dict(line.split("==") for line in lines if "==" in line)
    found: dict[str, dict[str, str]] = {}
    for name in ("requirements.txt", "requirements-build.txt"):
        text = (DEPLOY / name).read_text()
        assert "--require-hashes" in runs[0]
        assert f"--requirement deploy/{name}" in runs[0]
        assert "://" not in text
        found[name] = {package.lower(): version for package, version, _ in PIN.findall(text)}
        assert len(found[name]) == text.count("==")
        assert found[name].items() <= pins.items()
    installed = [
        line for run in runs for line in run.split("&&") if "pip install" in line or "pip wheel" in line
    ]
    for line in installed:  # what has no hashes comes from no index
        assert "--require-hashes" in line or "--no-deps" in line, line
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"]
    first = [*project["project"]["dependencies"], *extras["service"], *extras["postgres"]]
    assert _closure(first) <= found["requirements.txt"].keys()
    assert _closure(project["build-system"]["requires"]) <= found["requirements-build.txt"].keys()


def _closure(needed: list[str]) -> set[str]:
    """Return the names of packages and of all that they need, as far as they are installed here."""
    found: set[str] = set()
    waiting = [(Requirement(one), {""}) for one in needed]
    while waiting:
        one, extras = waiting.pop()
        name = one.name.lower().replace("_", "-")
        if name in found or not any(
            one.marker is None or one.marker.evaluate({**IMAGE, "extra": e}) for e in extras
        ):
            continue
        found.add(name)
        with suppress(metadata.PackageNotFoundError):
            waiting += [(Requirement(text), {"", *one.extras}) for text in metadata.requires(name) or ()]
    return found


def test_the_settings_in_the_image_are_settings() -> None:
    environment = environment_of_image()
    read = read_settings(environment=environment)
    assert (read.host, read.store) == ("0.0.0.0", "/data/coterie.db")
    assert read.given == frozenset({"host", "store"})
    assert image("VOLUME") == image("WORKDIR") == "/data"
    assert image("EXPOSE") == str(read.port)
    assert environment["NUMBA_CACHE_DIR"].startswith("/data/")


READ_ONLY = """
mount --make-rprivate / && mount --bind "$1" "$1" && mount -o remount,bind,ro / || exit 77
shift
touch "$0" 2>/dev/null && exit 78
exec "$@"
"""


def in_read_only_root(data: Path) -> list[str]:
    """Return what runs a command with a root file system that cannot be written to, but for one folder."""
    lend = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--map-root-user", "--mount"]
    wrapped = [*lend, "sh", "-c", READ_ONLY, str(data.parent / "elsewhere"), str(data)]
    if shutil.which("unshare") is None or subprocess.run([*wrapped, "true"], capture_output=True).returncode:
        pytest.skip("a root file system cannot be made read-only here")
    return wrapped


@pytest.mark.parametrize(
    "more",
    [
        pytest.param(["--policy", "random"], id="without compiled loops"),
        pytest.param([], id="as it is", marks=pytest.mark.slow),
    ],
)
def test_the_command_of_the_image_serves_and_writes_to_its_volume_alone(
    tmp_path: Path, more: list[str]
) -> None:
    """With the image's own command, environment and health check; the port and the place of /data differ."""
    data = tmp_path / "data"
    data.mkdir()
    own = {
        name: text.replace("/data", str(data))
        for name, text in environment_of_image().items()
        if name != "PATH"
    }
    environment = {
        **{name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ},
        "PYTHONPATH": str(SOURCE),
        "HOME": str(data),
        "COTERIE_KEY": "a-key-of-more-than-22-characters",
        "COTERIE_PORT": "0",
        **own,
    }
    words = [*json.loads(image("ENTRYPOINT")), *json.loads(image("CMD"))]
    assert words[0] == "coterie"
    command = [*in_read_only_root(data), sys.executable, "-m", "coterie.cli", *words[1:], *more]
    with (tmp_path / "said").open("wb") as said:
        process = subprocess.Popen(command, env=environment, cwd=data, stdout=said, stderr=subprocess.STDOUT)
    try:
        port = address_in(tmp_path / "said", process).rpartition(":")[2]
        end = time.monotonic() + 900  # loops are compiled, on a machine with other things to do
        while process.poll() is None and time.monotonic() < end:
            try:
                if httpx.get(f"http://127.0.0.1:{port}/readyz").status_code == 200:
                    break
            except httpx.TransportError:
                time.sleep(0.1)
        assert process.poll() is None, (tmp_path / "said").read_text()
        check = json.loads(image("HEALTHCHECK").partition("CMD ")[2])
        probe = [sys.executable, *(word.replace(":8080", f":{port}") for word in check[1:])]
        assert subprocess.run(probe).returncode == 0
        body = {"user": "ann", "actions": [{"id": "a"}, {"id": "b"}]}
        headers = {"x-api-key": environment["COTERIE_KEY"]}
        assert httpx.post(f"http://127.0.0.1:{port}/v1/rank", json=body, headers=headers).status_code == 201
        process.terminate()
        assert process.wait(timeout=300) == 0
        assert subprocess.run(probe, capture_output=True).returncode != 0
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    assert (data / "coterie.db").stat().st_size > 0


# Compose.


def test_the_compose_file_runs_two_services_that_are_locked_down() -> None:
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    services = compose["services"]
    assert services.keys() == {"first", "second", "proxy", "database"}
    for name in ("first", "second"):
        one = services[name]
        assert one["read_only"] is True
        assert one["cap_drop"] == ["ALL"]
        assert one["security_opt"] == ["no-new-privileges:true"]
        assert one["depends_on"]["database"]["condition"] == "service_healthy"
        assert "ports" not in one  # only the proxy can be reached
        assert one["volumes"] == [f"{name}:/data"]
        assert (DEPLOY / one["build"]["context"] / one["build"]["dockerfile"]).exists()
        grace = float(one["stop_grace_period"].removesuffix("s"))
        assert grace > Settings().stop_within
        database = services["database"]["environment"]
        url = f"postgresql://{database['POSTGRES_USER']}@database/{database['POSTGRES_DB']}"
        assert read_settings(environment=one["environment"]).store == url
    for one in services.values():
        named = {text.split(":")[0] for text in one["volumes"] if not text.startswith(".")}
        assert named <= compose["volumes"].keys()
        assert all((DEPLOY / text.split(":")[0]).exists() for text in one["volumes"] if text.startswith("."))
        assert ":" in one["image"] or "build" in one
        assert "PASSWORD=" not in str(one)
    assert services["proxy"]["ports"] == ["127.0.0.1:8080:8080"]


def test_the_proxy_asks_for_readiness_and_knows_both_services(tmp_path: Path) -> None:
    text = (DEPLOY / "haproxy.cfg").read_text()
    assert "meth GET uri /readyz" in text
    assert "http-check disable-on-404" in text  # how a service that stops says so
    assert re.findall(r"server (\w+) (\w+):8080", text) == [("first", "first"), ("second", "second")]
    if shutil.which("haproxy") is None:
        pytest.skip("haproxy is not installed (Debian: apt-get install haproxy)")
    done = subprocess.run(
        ["haproxy", "-c", "-f", str(DEPLOY / "haproxy.cfg")], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


# systemd.


def unit(name: str) -> dict[str, list[str]]:
    """Return the settings of a unit, each with all its values."""
    found: dict[str, list[str]] = {}
    for line in (DEPLOY / name).read_text().splitlines():
        if "=" in line and not line.startswith("#"):
            key, _, value = line.partition("=")
            found.setdefault(key, []).append(value)
    return found


@pytest.mark.parametrize("name", UNITS)
def test_a_unit_is_a_template_that_is_locked_down(name: str) -> None:
    settings = unit(name)
    for key, value in {
        "User": "coterie",
        "ProtectSystem": "strict",
        "NoNewPrivileges": "yes",
        "CapabilityBoundingSet": "",
        "UMask": "0077",
        "StateDirectoryMode": "0700",
        "WorkingDirectory": "%S/coterie/%i",
    }.items():
        assert settings[key] == [value]
    assert settings["StateDirectory"][0].startswith("coterie/%i")
    assert "u coterie " in (DEPLOY / "coterie.sysusers").read_text()


def test_the_service_has_time_to_stop_and_enough_files() -> None:
    settings = unit("coterie@.service")
    assert float(settings["TimeoutStopSec"][0]) > Settings().stop_within
    assert int(settings["LimitNOFILE"][0]) > 2 * Settings().max_connections
    assert "MemoryDenyWriteExecute" not in settings  # compiled loops are written, then run


@pytest.mark.parametrize("name", UNITS)
def test_the_commands_of_a_unit_exist(name: str) -> None:
    called = re.findall(r"/opt/coterie/bin/coterie (\w+)([^']*)", unit(name)["ExecStart"][0])
    assert len(called) == 1
    command, rest = called[0]
    assert command in COMMANDS
    known = {word for option in read_command(command).params for word in option.opts}
    assert set(re.findall(r"--[a-z-]+", re.sub(r"\$\(.*?\)", "", rest))) <= known


@pytest.mark.parametrize("name", [*UNITS, "coterie-backup@.timer"])
def test_systemd_finds_nothing_wrong(name: str, tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd is not installed")
    for other in [*UNITS, "coterie-backup@.timer"]:  # the timer names the service
        text = (DEPLOY / other).read_text().replace("/opt/coterie/bin/coterie", "/bin/true")
        (tmp_path / other.replace("@.", "@news.")).write_text(text)
    path = str(tmp_path / name.replace("@.", "@news."))
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", path], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    if name.endswith("service"):
        # Exposure from 0 to 10, here times ten; a plain unit has 9.6.
        asked = ["systemd-analyze", "security", "--offline=true", "--threshold=20", path]
        done = subprocess.run(asked, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout[-300:]


# Prometheus and Grafana.


@pytest.fixture(scope="module")
def exposed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[tuple[str, str]]]:
    """Every series name that a service exposes, with the labels and values it had after some requests."""
    store = SqliteStore(str(tmp_path_factory.mktemp("metrics") / "log.db"))
    with TestClient(
        make_app(Settings(config=Config(holdback=0.5)), store), base_url="http://127.0.0.1"
    ) as client:
        body = {"user": "ann", "eventId": "e", "actions": [{"id": "a"}, {"id": "b"}]}
        assert client.post("/v1/rank", json=body).status_code == 201
        for event in ("e", "unknown"):
            client.post(f"/v1/events/{event}/reward", json={"value": 1})
        client.get("/metrics")  # the second call tells of the first
        text = client.get("/metrics").text
    found: dict[str, set[tuple[str, str]]] = {}
    for family in text_string_to_metric_families(text):
        for name in (f"{family.name}_total",) if family.type == "counter" else (family.name,):
            found.setdefault(name, set())
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels.items())
    return found


def expressions() -> Iterator[tuple[str, str]]:
    """Yield every expression with where it stands."""
    rules = yaml.safe_load((DEPLOY / "alerts.yaml").read_text())
    for group in rules["groups"]:
        for rule in group["rules"]:
            yield rule["alert"], rule["expr"]
    board = json.loads((DEPLOY / "dashboard.json").read_text())
    for panel in board["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["name"], variable["query"]["query"]


def test_every_metric_in_alerts_and_dashboard_is_exposed(exposed: dict[str, set[tuple[str, str]]]) -> None:
    assert len(list(expressions())) > 20
    used = set()
    for where, text in expressions():
        for name, matchers in re.findall(r"\b(coterie_\w+)(?:\{([^}]*)\})?", text):
            assert name in exposed, f"{where} asks for {name}, which no service has"
            used.add(name)
            labels = {label for label, _ in exposed[name]} | {"job", "instance"}
            # Series of these counters appear with their first case.
            labels |= {"coterie_connections_cut_off_total": {"waiting"}}.get(name, set())
            for label in re.findall(r"(\w+)\s*=~?", matchers):
                assert label in labels, f"{where} asks {name} for the label {label}"
        rest = re.sub(r"\{[^}]*\}|\[[^]]*\]", "", text)
        for label in re.findall(r"by \(([^)]*)\)", rest):
            known = {label for name in exposed for label, _ in exposed[name]} | {"job", "waiting", "part"}
            assert set(label.replace(" ", "").split(",")) <= known, where
    unused = {name for name in exposed if not name.endswith(("_created", "_sum", "_bucket", "_count"))} - used
    assert unused <= {"coterie_request_seconds", "coterie_commit_seconds"}, f"on no panel: {unused}"


@pytest.mark.parametrize(
    ("label", "text", "those"),
    [
        ("outcome", r'outcome="(\w+)"', {"applied"}),
        ("outcome", r'outcome=~"([^"]*)"', {"late|unknown_event"}),
        ("route", r'route=~"([^"]*)"', {".*/rank"}),
        ("status", r'status=~"([^"]*)"', {"5..", "4..|5.."}),
    ],
)
def test_values_that_expressions_ask_for_occur(
    exposed: dict[str, set[tuple[str, str]]], label: str, text: str, those: set[str]
) -> None:
    asked = {found for _, expression in expressions() for found in re.findall(text, expression)}
    assert asked == those
    values = {value for pairs in exposed.values() for name, value in pairs if name == label}
    if label != "status":  # nothing failed
        assert all(any(re.fullmatch(pattern, value) for value in values) for pattern in asked)


def test_every_alert_says_what_happened_and_what_to_do() -> None:
    page = (ROOT / "docs" / "production.md").read_text()
    for group in yaml.safe_load((DEPLOY / "alerts.yaml").read_text())["groups"]:
        for rule in group["rules"]:
            assert rule["annotations"].keys() == {"summary", "action"}
            assert rule["labels"]["severity"] in ("warning", "critical")
            assert f"`{rule['alert']}`" in page, f"docs/production.md does not mention {rule['alert']}"


def test_panels_have_places_and_ids_of_their_own() -> None:
    panels = json.loads((DEPLOY / "dashboard.json").read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (x, y)
        for panel in panels
        for at in [panel["gridPos"]]
        for x in range(at["x"], at["x"] + at["w"])
        for y in range(at["y"], at["y"] + at["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) == 23


CASES = """
rule_files: [alerts.yaml]
evaluation_interval: 15s
tests:
  - interval: 15s
    name: one of two is killed, and the other serves
    input_series:
      - {series: 'up{job="coterie", instance="a"}', values: '1x10 0x40'}
      - {series: 'up{job="coterie", instance="b"}', values: '1x50'}
      - {series: 'coterie_ready{job="coterie", instance="a"}', values: '1x10 stale'}
      - {series: 'coterie_ready{job="coterie", instance="b"}', values: '1x50'}
      - {series: 'coterie_behind_seconds{job="coterie", instance="b"}', values: '0.01x20 7x30'}
    alert_rule_test:
      - eval_time: 10m
        alertname: CoterieDown
        exp_alerts: [{exp_labels: {severity: warning, job: coterie, instance: a}}]
      - {eval_time: 10m, alertname: CoterieNobodyServes, exp_alerts: []}
      - {eval_time: 2m, alertname: CoterieBehind, exp_alerts: []}
      - eval_time: 10m
        alertname: CoterieBehind
        exp_alerts: [{exp_labels: {severity: warning, job: coterie, instance: b}}]
  - interval: 15s
    name: nobody serves
    input_series:
      - {series: 'coterie_ready{job="coterie", instance="a"}', values: '0x20'}
    alert_rule_test:
      - eval_time: 2m
        alertname: CoterieNobodyServes
        exp_alerts: [{exp_labels: {severity: critical, job: coterie}}]
  - interval: 1m
    name: decisions without rewards, from a service that never saw one
    input_series:
      - {series: 'coterie_ready{job="coterie", instance="a"}', values: '1x200'}
      - {series: 'coterie_decisions{job="coterie", instance="a"}', values: '0+10x200'}
    alert_rule_test:
      - eval_time: 3h
        alertname: CoterieNoRewards
        exp_alerts: [{exp_labels: {severity: warning, job: coterie}}]
  - interval: 1m
    name: one request in twenty fails
    input_series:
      - {series: 'coterie_request_seconds_count{job="coterie", status="201"}', values: '0+19x30'}
      - {series: 'coterie_request_seconds_count{job="coterie", status="503"}', values: '0+1x30'}
    alert_rule_test:
      - eval_time: 20m
        alertname: CoterieErrors
        exp_alerts: [{exp_labels: {severity: critical, job: coterie}}]
"""


def test_alerts_fire_when_they_should(tmp_path: Path) -> None:
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed (Debian: apt-get install prometheus)")
    rules = yaml.safe_load((DEPLOY / "alerts.yaml").read_text())
    for group in rules["groups"]:
        for rule in group["rules"]:
            del rule["annotations"]  # which the cases would have to repeat
    (tmp_path / "alerts.yaml").write_text(yaml.safe_dump(rules))
    (tmp_path / "cases.yaml").write_text(CASES)
    for words in (
        ["check", "rules", str(DEPLOY / "alerts.yaml")],
        ["test", "rules", str(tmp_path / "cases.yaml")],
    ):
        done = subprocess.run(["promtool", *words], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
