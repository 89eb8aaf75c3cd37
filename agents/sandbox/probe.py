"""What this host can do for sandboxes, found by making a real one. Called by `trajmill doctor`."""

import asyncio
import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from agents import compiled
from agents.sandbox import topology
from agents.sandbox.base import Limits
from agents.sandbox.native import build, layout
from agents.sandbox.native.host import WEAKER, NativeFactory
from agents.sandbox.native.sandbox import NativeSandbox
from schemas.errors import CannotCompile, SandboxError

TOOLS = ("bash", "ls", "sed", "grep", "find", "awk", "sort", "head", "tar", "diff")
PYTHON = "import sqlite3, sys; print(sys.version.split()[0], sqlite3.sqlite_version)"


class Check(NamedTuple):
    """One line of the report: is it as it should be, what was found, and can the default run do without it."""

    name: str
    ok: bool
    detail: str
    optional: bool = False


def probe() -> list[Check]:
    """Open a sandbox, look around in it, close it. Never raises for a host that cannot: that is a finding."""
    return [*_compiler(), *_namespaces(), *asyncio.run(_sandbox())]


def _compiler() -> Iterable[Check]:
    try:
        yield Check("compiler", True, compiled.compiler("the sandbox zygote"))
    except CannotCompile as error:
        yield Check("compiler", False, str(error), optional=True)


def _namespaces() -> Iterable[Check]:
    """Switches by which hosts turn user namespaces off, named when they are set so."""
    for name, off in (
        ("user/max_user_namespaces", "0"),
        ("kernel/unprivileged_userns_clone", "0"),
        ("kernel/apparmor_restrict_unprivileged_userns", "1"),
    ):
        path = Path("/proc/sys") / name
        rootless_only = name.startswith("kernel/")
        if path.exists() and path.read_text().strip() == off and not (rootless_only and os.geteuid() == 0):
            yield Check("user namespaces", False, f"{path} is {off}", optional=True)
            return
    yield Check("user namespaces", True, "not switched off")


async def _sandbox() -> list[Check]:
    factory = NativeFactory(accept_process_memory_limit=True)
    try:
        sandbox = await factory.open(Limits(), "background")
        return [
            Check("sandbox", True, f"zygote {build.zygote()}"),
            Check("user ids", True, _ids(sandbox)),
            _memory(factory),
            *_priority(factory),
            Check("numa nodes", True, _nodes()),
            await _fork(factory),
            await _python(sandbox),
            await _tools(sandbox),
        ]
    except SandboxError as error:
        return [Check("sandbox", False, str(error))]
    finally:
        await factory.close()


def _ids(sandbox: NativeSandbox) -> str:
    if sandbox.own_ids:
        return "commands have a user id of their own"
    return "rootless: commands have the user id of this process, without its rights outside the sandbox"


def _memory(factory: NativeFactory) -> Check:
    groups = factory.groups
    if groups.version:
        return Check("memory limit", True, f"cgroup v{groups.version}, for the whole sandbox")
    return Check("memory limit", False, WEAKER.format(why=groups.why))


def _priority(factory: NativeFactory) -> Iterable[Check]:
    weights = factory.groups.cpu is not None
    found = "a cgroup for each priority" if weights else "SCHED_IDLE only, no processor weights: no cpu cgroup is ours"
    yield Check("priority", weights, found, optional=True)
    tagged = factory.keeps_cores_apart
    said = "sandboxes of different priority never share a core" if tagged else "not in this kernel (CONFIG_SCHED_CORE)"
    yield Check("core scheduling", tagged, f"{said}; {_siblings()}", optional=True)


def _siblings() -> str:
    shared = topology.siblings(topology.read())
    return (
        f"{shared} processors are hyperthreads of a core with others" if shared else "no processors share a core here"
    )


def _nodes() -> str:
    nodes = topology.read().nodes
    if len(nodes) == 1:
        return "one: nothing to bind"
    return "; ".join(f"{n.id}: {len(n.cpus)} processors, {n.memory_mb} MB" for n in nodes)


async def _fork(factory: NativeFactory) -> Check:
    other = await factory.open(Limits())
    try:
        await other.put({"seen": b""})
        snapshot = await other.seal()
        seen = await (await factory.fork(snapshot)).collect(["seen"])
        await snapshot.close()
    except SandboxError as error:
        return Check("forking", False, str(error), optional=True)
    return Check("forking", bool(seen), "by overlayfs, without copying", optional=True)


async def _python(sandbox: NativeSandbox) -> Check:
    done = await sandbox.run(["python3", "-c", PYTHON])
    place = layout.python_folder() or "/usr"
    said = (done.stdout or done.stderr).decode(errors="replace").strip()
    return Check("python inside", done.exit_code == 0, f"{said or 'no output'} (from {place})")


async def _tools(sandbox: NativeSandbox) -> Check:
    done = await sandbox.run(f"for t in {' '.join(TOOLS)}; do command -v $t >/dev/null || echo $t; done")
    missing = done.stdout.decode(errors="replace").split()
    return Check("tools inside", not missing, f"missing: {', '.join(missing)}" if missing else ", ".join(TOOLS))
