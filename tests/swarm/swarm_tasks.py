"""A hand-made task for the swarm's tests: make `out.txt` with the shouted words of `in.txt`."""

import json

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
