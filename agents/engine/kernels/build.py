"""Compiles the kernels on first use. Called by `models.llama`."""

import ctypes
import functools
import logging
import os
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
    program = compiled.Program("the engine's kernels", "kernels", sources, _FLAGS, (("-lm",),), compiled.machine())
    try:
        return ctypes.CDLL(str(compiled.build(program, compiled.cache_folder())))
    except (CannotCompile, OSError) as error:
        log.warning("attention and norms run in torch, several times slower: %s", error)
        return None
