"""Compiles the kernels on first use. Called by `models.llama`."""

import ctypes
import functools
import logging
import os
import platform
from pathlib import Path

from agents import compiled
from schemas.errors import CannotCompile

log = logging.getLogger(__name__)

SWITCH = "TRAJMILL_KERNELS"
"""Environment variable; `off` leaves all work to torch."""
# Not -ffast-math: sums must keep their order, and infinities and NaN their meaning.
_FLAGS = ("-O3", "-march=native", "-fPIC", "-shared", "-fno-math-errno", "-ffp-contract=fast", "-Wall", "-Wextra")


@functools.cache
def load() -> ctypes.CDLL | None:
    """The compiled kernels; None when they are switched off or cannot be compiled, which a warning says once."""
    if os.environ.get(SWITCH) == "off":
        log.warning("%s=off: attention and norms run in torch, several times slower", SWITCH)
        return None
    sources = Path(__file__).parent
    program = compiled.Program("the engine's kernels", "kernels", sources, _FLAGS, (("-lm",),), _machine())
    try:
        return ctypes.CDLL(str(compiled.build(program, compiled.cache_folder())))
    except (CannotCompile, OSError) as error:
        log.warning("attention and norms run in torch, several times slower: %s", error)
        return None


def _machine() -> str:
    """The processor's features: a cache folder may be shared between machines, and -march=native means this one."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = ("flags", "Features", "model name", "CPU implementer", "CPU part")
    features = {line for line in lines if line.partition(":")[0].strip() in names}
    return " ".join([platform.machine(), *sorted(features)])
