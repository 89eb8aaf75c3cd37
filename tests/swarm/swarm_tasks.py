"""For the swarm's tests: a hand-made task, make `out.txt` with the shouted words of `in.txt`; and how it is played."""

import asyncio
import json
from collections.abc import Callable, Sequence

from agents.sandbox.base import Limits, SandboxPool
from agents.scaffolds import scaffold
from agents.swarm.blueprint import BlueprintPolicy
from agents.swarm.episode import ROOM_S, PolicyMaker, Resources
from agents.swarm.spec import EpisodeSpec, subgroups_of
from agents.swarm.subgroup import run_subgroup, together
from schemas.episode import Episode, Provenance
from schemas.task import Action, BlueprintStep, Budget, FileSpec, Task, Verification

VERIFIER = """
import json, pathlib, sys
nonce = sys.stdin.read()
out = pathlib.Path("/work/out.txt")
done = out.is_file() and out.read_text().split() == ["ONE", "TWO"]
kept = pathlib.Path("/work/in.txt").is_file()
print(json.dumps({"nonce": nonce, "points": {"shouted": done, "kept": kept}}))
"""


def bash(command: str) -> Action:
    return Action(tool="bash", arguments_json=json.dumps({"command": command}))


def step(phase: str, command: str, min_effort: int = 1) -> BlueprintStep:
    return BlueprintStep.model_validate(
        {"phase": phase, "thought": f"Now I {phase}.", "action": bash(command), "min_effort": min_effort}
    )


def shout_task(slip_rate: float = 0.0, turns: int = 12) -> Task:
    submit = Action(tool="submit", arguments_json=json.dumps({"answer": "Done."}))
    return Task(
        task_id="task_shout",
        environment="test",
        kind="test/shout",
        pattern_id="pattern_test",
        seed=0,
        split="train",
        wording_id="w",
        style="terse",
        instruction="Write the words of in.txt in capitals to out.txt.",
        workspace=[FileSpec(path="in.txt", content="one two\n")],
        verification=Verification(
            files=[FileSpec(path="verify.py", content=VERIFIER)],
            command=["python3", "-I", "/verify/verify.py"],
            fail_to_pass=["shouted"],
            pass_to_pass=["kept"],
        ),
        blueprint=[
            step("explore", "cat in.txt"),
            step("work", "tr a-z A-Z < in.txt > out.txt"),
            step("check", "cat out.txt", 60),
            step("check", "wc -w out.txt", 85),
            BlueprintStep(phase="submit", thought="All done.", action=submit),
        ],
        answer=["ONE TWO"],
        budget=Budget(turns=turns, output_tokens=4096, command_s=10, episode_s=120),
        slip_rate=slip_rate,
    )


def spec(name: str = "tool_json", layout: str = "solo", effort: int = 50, **more: object) -> EpisodeSpec:
    provenance = Provenance.model_validate(
        {"policy": "blueprint", "scaffold": name, "layout": layout, "effort": effort, "repeat": 0, "seed": 11} | more
    )
    return EpisodeSpec(
        task_id="task_shout", provenance=provenance, max_turns=None, max_reply_tokens=512, prefix_seed=11
    )


def blueprint_maker(wanted: EpisodeSpec, task: Task, shared) -> BlueprintPolicy:
    return BlueprintPolicy(wanted, task, scaffold(wanted.provenance.scaffold), shared)


def play_specs(
    specs: Sequence[EpisodeSpec],
    task: Task,
    maker: PolicyMaker,
    open_pool: Callable[[], SandboxPool],
    slots: int = 64,
    room_s: float = ROOM_S,
) -> list[Episode]:
    """The episodes of the specs' subgroups, all at once, as they end, in a pool of their own."""

    async def run() -> list[Episode]:
        pool, ended = open_pool(), []
        try:
            resources = Resources(task, maker, pool, Limits(), asyncio.Semaphore(slots), asyncio.Lock(), room_s)
            await together(run_subgroup(some, resources, ended.append) for some in subgroups_of(specs))
        finally:
            await pool.close()
        return ended

    return asyncio.run(run())


def timeless(episode: Episode) -> Episode:
    """Without what the clock and the infrastructure decide."""
    trajectories = [
        t.model_copy(update={"turns": [turn.model_copy(update={"command_s": None}) for turn in t.turns]})
        for t in episode.trajectories
    ]
    clock = {"trajectories": trajectories, "started_at": None, "wall_s": None, "attempts": 1}
    return episode.model_copy(update=clock)
