"""A foreign package that hides one of ours is named in a clear message."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipelines.names import NAMES, check_names

ROOT = Path(__file__).resolve().parents[1]


def test_our_names_are_ours() -> None:
    check_names()


@pytest.mark.parametrize("name", ["agents", "prompts"])
def test_a_foreign_package_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").write_text("")
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    # -P: the working directory does not come first, as it does not for an installed command.
    command = [sys.executable, "-P", "-c", "from pipelines.cli import main; main()", "doctor"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert f"`{name}`" in done.stderr
    assert str(tmp_path / name / "__init__.py") in done.stderr
    assert "Traceback" not in done.stderr


def test_every_top_level_package_is_checked() -> None:
    tops = {p.parent.name for p in ROOT.glob("*/__init__.py")}
    assert tops == set(NAMES)
