"""Sandbox figures as JSON lines, beside a raw subprocess and two peers of the same run. Called by `make bench`.

About four minutes on two cores that do nothing else. `--live 100 --blocks 2` is a quick try; its figures are noise.
"""

import argparse
import asyncio
import resource
import signal

import sandbox_speed as speed
from sandbox_battery import battery
from sandbox_live import FULL, live_at_once
from sandbox_measure import Meter, cpu_meter, new_factory

PARTS = ("create", "exec", "fork", "timeout", "priority", "live", "battery")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--live", type=int, default=FULL, help="sandboxes at once")
    parser.add_argument("--busy", type=int, default=200, help="busy background sandboxes")
    parser.add_argument("--blocks", type=int, default=12, help="times that ours and the peers take turns")
    parser.add_argument("--only", choices=PARTS, nargs="+", default=PARTS)
    return parser.parse_args()


async def measure(options: argparse.Namespace, meter: Meter) -> None:
    """Everything but the battery. Whatever goes wrong, the sandboxes end."""
    factory = new_factory()
    only, blocks = set(options.only), options.blocks
    try:
        if "create" in only:
            await speed.create(factory, meter, blocks)
        if "exec" in only:
            await speed.execute(factory, meter, blocks)
            await speed.execute_many(factory, meter, blocks)
        if "fork" in only:
            await speed.fork(factory, meter, 1, blocks)
            await speed.fork(factory, meter, 50, blocks)
        if "timeout" in only:
            await speed.timeout(factory, 2 * blocks)
        if "priority" in only:
            await speed.priority(factory, meter, options.busy, 30 * blocks)
    finally:
        await factory.close()
    if "live" in only:
        await live_at_once(options.live, meter)


def main() -> None:
    options = arguments()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends as Ctrl-C does: everything is put away
    with cpu_meter() as meter:
        asyncio.run(measure(options, meter))
    if "battery" in options.only:
        battery()


if __name__ == "__main__":
    main()
