"""Each module of the package can be the first that is imported: no circle of imports hides behind an order."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# One process: all but the package itself stays loaded.
SCRIPT = """
import importlib, sys
for name in sys.argv[1:]:
    for loaded in [m for m in sys.modules if m.startswith(("pipelines", "schemas.merge"))]:
        del sys.modules[loaded]
    try:
        importlib.import_module(name)
    except ImportError as error:
        print(f"{name}: {error}")
"""


def test_every_module_imports_alone() -> None:
    files = sorted((ROOT / "pipelines" / "merge").rglob("*.py"))
    names = [".".join(f.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for f in files]
    assert len(names) > 20
    command = [sys.executable, "-c", SCRIPT, *names]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("", 0), done.stderr
