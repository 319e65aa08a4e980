"""TLS: a certificate made here is served, and files that cannot be used stop the start with their names."""

import shutil
import ssl
import subprocess
from pathlib import Path

import httpx
import pytest

from coterie.errors import ParameterError
from coterie.service.serve import tls_of
from coterie.service.settings import Settings
from tests.service.process import service

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a certificate for this machine and its key, another key, and one with a password."""
    folder = tmp_path_factory.mktemp("tls")
    pair = ["-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem")]
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    _openssl(
        "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", *pair, *names
    )
    other = ["-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-out"]
    _openssl("genpkey", *other, str(folder / "other.pem"))
    _openssl("genpkey", "-aes-256-cbc", "-pass", "pass:secret", *other, str(folder / "locked.pem"))
    both = (folder / "cert.pem").read_text() + (folder / "key.pem").read_text()
    (folder / "both.pem").write_text(both)
    (folder / "noise.pem").write_text("no certificate at all")
    return folder


def _openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)


def _settings(folder: Path, certificate: str | None, key: str | None) -> Settings:
    return Settings(
        tls_certificate=None if certificate is None else str(folder / certificate),
        tls_key=None if key is None else str(folder / key),
    )


def test_the_service_speaks_tls_and_nothing_else(files: Path, tmp_path: Path) -> None:
    (tmp_path / "settings.toml").write_text(
        f'tls-certificate = "{files / "cert.pem"}"\ntls-key = "{files / "key.pem"}"\n'
    )
    trusting = ssl.create_default_context(cafile=str(files / "cert.pem"))
    options = ("--settings", str(tmp_path / "settings.toml"), "--store", str(tmp_path / "log.db"))
    with service(*options, trusting=trusting) as running:
        body = {"user": "ann", "actions": [{"id": "a"}], "eventId": "e1"}
        answer = httpx.post(f"{running.url}/v1/rank", json=body, verify=trusting)
        assert (answer.status_code, answer.json()["chosen"]) == (201, "a")
        with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
            httpx.get(f"{running.url}/healthz")
        with pytest.raises(httpx.TransportError):
            httpx.get(f"{running.url.replace('https', 'http')}/healthz")
        assert running.stop()[0] == 0


def test_a_certificate_with_its_key_in_one_file_will_do(files: Path) -> None:
    tls_of(_settings(files, "both.pem", None))
    tls_of(_settings(files, "cert.pem", "key.pem"))
    tls_of(Settings())


@pytest.mark.parametrize(
    ("certificate", "key", "says"),
    [
        (None, "key.pem", r"tls-key is '.*key\.pem', but there is no tls-certificate; give both, or neither"),
        (
            "cert.pem",
            None,
            r"cert\.pem cannot be used .*tls-key is not given, and the certificate's file holds no key",
        ),
        (
            "cert.pem",
            "none.pem",
            r"No such file or directory: '.*none\.pem'.*expected a certificate and its key",
        ),
        ("none.pem", "key.pem", r"No such file or directory: '.*none\.pem'"),
        ("noise.pem", "key.pem", r"noise\.pem and .*key\.pem cannot be used"),
        ("cert.pem", "noise.pem", r"cert\.pem and .*noise\.pem cannot be used"),
        ("cert.pem", "other.pem", r"(?i)cert\.pem and .*other\.pem cannot be used .*mismatch"),
        ("cert.pem", "locked.pem", r"locked\.pem cannot be used .*the key without a password"),
    ],
)
def test_files_that_cannot_be_used_are_named(
    files: Path, certificate: str | None, key: str | None, says: str
) -> None:
    with pytest.raises(ParameterError, match=says):
        tls_of(_settings(files, certificate, key))


def test_a_start_with_a_missing_key_ends_before_the_store_is_touched(files: Path, tmp_path: Path) -> None:
    (tmp_path / "settings.toml").write_text(f'tls-certificate = "{files / "cert.pem"}"\n')
    options = ("--settings", str(tmp_path / "settings.toml"), "--store", str(tmp_path / "log.db"))
    with pytest.raises(RuntimeError, match="tls-key is not given"), service(*options):
        pass
    assert not (tmp_path / "log.db").exists()
