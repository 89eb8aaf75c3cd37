"""An import only ever points down, and heavy libraries stay where they belong. Imports are read, not executed."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

# What each part may import of ours, besides itself.
L0 = {"schemas"}
ALLOWED = {
    "schemas": set(),
    "prompts": set(),
    "agents.access": L0,
    "agents.compiled": L0,
    "agents.engine": L0 | {"prompts", "agents.access", "agents.compiled"},
    "agents.sandbox": L0 | {"prompts", "agents.access", "agents.compiled"},
    "agents.scaffolds": L0 | {"prompts"},
    "agents.environments": L0 | {"prompts"},
    "agents.swarm": L0 | {"prompts", "agents.engine", "agents.sandbox", "agents.scaffolds", "agents.environments"},
}
ALLOWED["agents.runtime"] = ALLOWED["agents.swarm"] | {"agents.swarm"}
ALLOWED["pipelines"] = ALLOWED["agents.runtime"] | {"agents.runtime", "agents.access", "agents.compiled"}
TORCH = ("agents.engine", "pipelines.posttrain")
BEAM = "pipelines.transforms"


def part_of(module: str) -> str | None:
    """The part that a module of ours belongs to; None for other people's."""
    return max((p for p in ALLOWED if module == p or module.startswith(p + ".")), key=len, default=None)


def modules() -> list[tuple[str, Path]]:
    """Name and file of every module of ours. What runs inside a sandbox is a program of its own, not a module."""
    files = [f for top in ("schemas", "prompts", "agents", "pipelines") for f in (ROOT / top).rglob("*.py")]
    inside = ROOT / "agents" / "environments"
    files = [f for f in files if not (f.is_relative_to(inside) and not (f.parent / "__init__.py").exists())]
    return [(".".join(f.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"), f) for f in sorted(files)]


def imports(file: Path, module: str) -> Iterator[str]:
    """Absolute names of all that a file imports, at any depth; `from a import b` gives a.b."""
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield from (f"{base}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize(("module", "file"), modules(), ids=[name for name, _ in modules()])
def test_imports_point_down(module: str, file: Path) -> None:
    own = part_of(module)
    for name in imports(file, module):
        other = part_of(name)
        if own and other and other != own:
            assert other in ALLOWED[own], f"{module} imports {name}"
        top = name.partition(".")[0]
        if top == "torch":
            assert module.startswith(TORCH), f"{module} imports torch"
        if top == "apache_beam":
            assert module.startswith(BEAM), f"{module} imports Beam"


def test_the_walk_sees_a_wrong_import(tmp_path: Path) -> None:
    file = tmp_path / "x.py"
    file.write_text("def f():\n    from agents.swarm import loop\n    from ..engine import base\n    import torch.nn\n")
    found = list(imports(file, "agents.scaffolds.x"))
    assert found == ["agents.swarm.loop", "agents.engine.base", "torch.nn"]
    assert part_of(found[0]) not in ALLOWED["agents.scaffolds"]
    assert part_of(found[1]) not in ALLOWED["agents.scaffolds"]


def test_the_command_line_starts_without_heavy_libraries() -> None:
    code = "import sys, pipelines.cli; print(*sorted({'torch', 'apache_beam', 'duckdb', 'pyarrow'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
