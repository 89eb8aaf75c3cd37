"""Compiles the C zygote on first use. Called by host.py and probe.py."""

import functools
from pathlib import Path

from agents import compiled
from schemas.errors import CannotCompile, SandboxUnsupported

SOURCES = Path(__file__).parent
FLAGS = ("-O2", "-Wall", "-Wextra", "-D_FORTIFY_SOURCE=2")
LINKING = (("-static",), ())
"""Static is half the memory of an idle sandbox; systems without a static C library get the ordinary kind."""


def program(sources: Path = SOURCES) -> compiled.Program:
    """What is compiled."""
    return compiled.Program("the sandbox zygote", "sandbox", sources, FLAGS, LINKING)


def build(folder: Path, sources: Path = SOURCES) -> Path:
    """The zygote in `folder`, compiled unless it is there. Raises SandboxUnsupported naming what is missing."""
    try:
        return compiled.build(program(sources), folder)
    except CannotCompile as error:
        raise SandboxUnsupported(str(error)) from error


@functools.cache
def zygote() -> Path:
    """The compiled zygote of this process. Raises SandboxUnsupported naming what is missing."""
    try:
        folder = compiled.cache_folder()
    except CannotCompile as error:
        raise SandboxUnsupported(str(error)) from error
    return build(folder)
