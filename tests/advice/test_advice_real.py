"""On the real files: LastFM's users help each other, Delicious' do not, as the paper found."""

import os
from pathlib import Path

import pytest

from coterie.advice.records import Records, from_blocks
from coterie.advice.sharing import Sharing, measure_sharing
from coterie.data.datasets import open_dataset

pytestmark = pytest.mark.slow

FOLDER = Path(os.environ.get("COTERIE_DATA", Path(__file__).parents[3] / "shared" / "data"))


def log_of(name: str) -> Records:
    if not (FOLDER / name).is_dir():
        pytest.skip(f"{name} is not in {FOLDER}; set COTERIE_DATA to the folder with the data files")
    dataset = open_dataset(name, folder=FOLDER)
    return from_blocks(dataset.blocks(20_000, 0))


def judged(name: str) -> Sharing:
    return measure_sharing(log_of(name), splits=2)


def test_sharing_pays_on_lastfm() -> None:
    found = judged("lastfm")
    assert found.verdict == "pays"
    assert found.everyone[0] > found.own[0] + 0.1


def test_sharing_does_not_pay_on_delicious() -> None:
    found = judged("delicious")
    assert found.verdict == "does not pay"
    assert found.everyone.max() < 0.56  # what all users like together says next to nothing about one
