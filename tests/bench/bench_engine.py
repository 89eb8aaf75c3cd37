"""Engine figures as JSON lines: CPU time on one thread, in turns with peers of the same weights. Part of `make bench`.

About twelve minutes. `--only` picks parts; `--rounds 1` is a quick try. Parts whose single run takes half a minute and
more have fewer rounds: they average over the machine themselves.
"""

import argparse
import signal
from collections.abc import Callable

from engine_decode import decode, int8_weights, turns
from engine_exact import pause, soak
from engine_grammar import constrained
from engine_kernels import kernels
from engine_measure import load_model, one_thread
from engine_quality import quality
from engine_share import mixed_lengths, shared_prefix

from agents.engine.models.llama import Llama

Part = Callable[[Llama, int], None]
PARTS: dict[str, Part] = {
    "soak": lambda model, rounds: soak(2000),  # first: nothing before it has grown the heap
    "decode": decode,
    "int8": int8_weights,
    "turns": lambda model, rounds: turns(model, min(rounds, 2)),
    "shared": lambda model, rounds: shared_prefix(model, min(rounds, 2)),
    "mixed": lambda model, rounds: mixed_lengths(model, 1),
    "pause": lambda model, rounds: pause(model, min(rounds, 3)),
    "quality": lambda model, rounds: quality(),
    "constrained": lambda model, rounds: constrained(model, min(rounds, 2)),
    "kernels": lambda model, rounds: kernels(),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="times that ours and the peers take turns, at most")
    parser.add_argument("--only", choices=PARTS, nargs="+", default=list(PARTS))
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends as Ctrl-C does: the peers' processes, too
    one_thread()
    model = load_model()
    for name in options.only:
        PARTS[name](model, options.rounds)


if __name__ == "__main__":
    main()
