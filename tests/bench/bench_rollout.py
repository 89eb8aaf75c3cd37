"""The embedded model's episodes, run twice with other neighbours in the batch: the share that differs.

Also what an engine episode costs in CPU, many in flight against few. Takes about four minutes on two cores.
"""

import asyncio
import json
import resource
import subprocess
import tempfile
from pathlib import Path

from agents.runtime import open_runtime, run_all
from agents.swarm.spec import EpisodeSpec, plan_episodes
from pipelines import store
from schemas.episode import Episode
from schemas.recipe import EngineSettings, PlaySettings, RolloutSettings, RunConfig
from schemas.task import Task

ROOT = Path(__file__).resolve().parents[2]
EPISODES = 48


def make_tasks(folder: Path) -> dict[str, Task]:
    config = folder / "config.yaml"
    config.write_text("tasks: {per_family: 8}\nrollout: {plays: [{policy: scripted, max_episodes: 1}]}\n")
    subprocess.run(
        ["trajmill", "run", str(ROOT / "data" / "usage"), "--out", str(folder / "run"), "--config", str(config)],
        check=True,
        capture_output=True,
    )
    return {task.task_id: task for task in store.read_records(folder / "run", "tasks", Task)}


def cpu_s() -> float:
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def play(tasks: dict[str, Task], config: RunConfig) -> tuple[dict[str, str], float]:
    """What the agents wrote by episode, and CPU seconds."""

    async def run(specs: list[EpisodeSpec]) -> dict[str, str]:
        runtime = open_runtime(config, needs_engine=any(s.provenance.policy == "engine" for s in specs))
        episodes: list[Episode] = []
        await run_all(runtime, specs, tasks, episodes.append)
        await runtime.close()
        return {e.episode_id: json.dumps([[m.content for m in t.messages] for t in e.trajectories]) for e in episodes}

    before = cpu_s()
    return asyncio.run(run(plan_episodes(list(tasks.values()), config))), cpu_s() - before


def config(policy: str, episodes: int, in_flight: int, threads: int) -> RunConfig:
    plays = [
        PlaySettings.model_validate(
            {"policy": policy, "max_episodes": episodes, "max_turns": 3, "max_reply_tokens": 96}
        )
    ]
    return RunConfig(
        engine=EngineSettings(threads=threads, max_batch=in_flight),
        rollout=RolloutSettings(plays=plays, concurrency=in_flight),
    )


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        tasks = make_tasks(Path(folder))
    many, many_cpu = play(tasks, config("engine", EPISODES, 64, 2))
    few, few_cpu = play(tasks, config("engine", EPISODES, 6, 1))
    differ = sum(many[episode_id] != few[episode_id] for episode_id in many) / len(many)
    print(
        json.dumps(
            {
                "figure": "engine_episodes_that_differ",
                "ours": differ,
                "against": 0.0,
                "peer": f"the same {len(many)} episodes with 6 in flight on one thread",
                "ratio": differ,
                "unit": "share",
                "bar": 0.05,
                "holds": differ <= 0.05,
            }
        )
    )
    print(
        json.dumps(
            {
                "figure": "engine_episode_cpu_batched",
                "ours": round(many_cpu / len(many), 3),
                "against": round(few_cpu / len(few), 3),
                "peer": "6 in flight on one thread",
                "ratio": round(few_cpu / many_cpu, 2),
                "unit": "CPU s per episode",
                "bar": 1.0,
                "holds": few_cpu >= many_cpu,
            }
        )
    )


if __name__ == "__main__":
    main()
