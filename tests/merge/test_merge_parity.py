"""The same recipes, in mergekit's own YAML, through mergekit 0.1.5 (`make oracle`) and through us."""

import os
from pathlib import Path

import parity
import pytest

ORACLE = Path(os.environ.get("TRAJMILL_ORACLE", ".oracle")) / "bin" / "python"
pytestmark = pytest.mark.skipif(not ORACLE.exists(), reason=f"no mergekit at {ORACLE}; `make oracle` installs it")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("parity")
    parity.prepare(root, ORACLE)
    return root


@pytest.mark.parametrize("name", list(parity.RECIPES))
def test_deterministic_methods_agree(folder: Path, name: str) -> None:
    distances = parity.distances(parity.ours(folder, name), parity.theirs(folder, name))
    within = (distances <= 1).mean()
    print(f"{name}: equal {(distances == 0).mean():.6f}, within 1 ulp {within:.6f}")
    if name.startswith(("linear", "passthrough")):
        assert (distances > 1).sum() == 0 and (distances > 0).mean() <= 0.002
    assert within >= 0.999


def test_ties_has_the_bits_of_a_stable_sort(folder: Path) -> None:
    assert not parity.distances(parity.ours(folder, "ties"), parity.ties_by_sorting(folder)).any()


@pytest.mark.parametrize("name", list(parity.RANDOM))
def test_random_methods_agree_in_distribution(folder: Path, name: str) -> None:
    ours, theirs = (parity.changes(folder, made(folder, name)) for made in (parity.ours, parity.theirs))
    assert ours[0] == pytest.approx(theirs[0], abs=0.01)
    assert ours[1] == pytest.approx(theirs[1], rel=0.03)
    assert ours[2] == pytest.approx(theirs[2], abs=2e-4)
