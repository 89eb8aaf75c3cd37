"""mergekit, in an environment of its own: `python oracle_run.py RECIPE OUT [RECIPE OUT ...]`.

Prints a JSON line with seconds to start, then one a merge: wall and CPU seconds, and the peak of memory so far in MB.
Run by test_merge_parity.py and by bench_merge.py; never imported.
"""

import json
import os
import resource
import sys
import time
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"


def cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def memory(field: str) -> float:
    # Not ru_maxrss: a child inherits its parent's peak there.
    with Path("/proc/self/status").open() as status:
        return next(int(line.split()[1]) / 1024 for line in status if line.startswith(field))


def main() -> None:
    begin = time.perf_counter()
    import yaml
    from mergekit.config import MergeConfiguration
    from mergekit.merge import run_merge
    from mergekit.options import MergeOptions

    options = MergeOptions(lazy_unpickle=True, quiet=True, copy_tokenizer=False, write_model_card=False, random_seed=1)
    print(json.dumps({"start_wall": time.perf_counter() - begin, "start_cpu": cpu(), "start_memory": memory("VmRSS")}))
    for recipe, out in zip(sys.argv[1::2], sys.argv[2::2], strict=True):
        with Path(recipe).open() as file:
            configuration = MergeConfiguration.model_validate(yaml.safe_load(file))
        begin, before = time.perf_counter(), cpu()
        run_merge(configuration, out, options)
        figures = {"wall": time.perf_counter() - begin, "cpu": cpu() - before, "memory": memory("VmHWM")}
        print(json.dumps({"out": out, **figures}), flush=True)


if __name__ == "__main__":
    main()
