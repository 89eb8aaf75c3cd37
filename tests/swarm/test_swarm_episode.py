"""Whole episodes in real sandboxes: blueprint and scripted policies, scaffolds, layouts, and what goes wrong."""

import json
from dataclasses import replace
from itertools import product

import pytest
from swarm_tasks import bash, blueprint_maker, play_specs, shout_task, spec, step, timeless

from agents.sandbox.native.host import NativeFactory
from agents.sandbox.pool import Pool
from agents.scaffolds import SCAFFOLDS, scaffold
from agents.swarm.loop import MAX_OBSERVATION, clip
from agents.swarm.policy import Agent, Policy, Reply, ScriptedPolicy
from agents.swarm.spec import EpisodeSpec
from schemas.episode import Episode, Trajectory
from schemas.errors import ContextFull, EngineUnavailable
from schemas.task import Action, Task

CELLS = list(product(SCAFFOLDS, ("solo", "team"), (50, 75, 100)))


def native() -> Pool:
    return Pool(NativeFactory(accept_process_memory_limit=True))


def play(wanted: EpisodeSpec, policy: Policy, task: Task | None = None) -> Episode:
    (episode,) = play_specs([wanted], task or shout_task(), lambda *_: policy, native)
    return episode


def blueprint(wanted: EpisodeSpec, task: Task) -> Episode:
    (episode,) = play_specs([wanted], task, blueprint_maker, native)
    return episode


def written(name: str, *actions: Action) -> list[str]:
    return [scaffold(name).write("So.", a) for a in actions]


def submit(answer: str = "done") -> Action:
    return Action(tool="submit", arguments_json=json.dumps({"answer": answer}))


def send(to: str, text: str) -> Action:
    return Action(tool="send_message", arguments_json=json.dumps({"to": to, "text": text}))


WAIT = Action(tool="wait", arguments_json="{}")


@pytest.mark.parametrize(("name", "layout", "effort"), CELLS)
@pytest.mark.parametrize("slip_rate", [0.0, 0.9])
def test_the_blueprint_solves_its_task_in_every_cell(name: str, layout: str, effort: int, slip_rate: float) -> None:
    wanted = spec(name, layout, effort)
    episode = blueprint(wanted, shout_task(slip_rate))
    assert episode.passed, (episode.stop_reason, episode.points_json)
    assert episode.stop_reason == "submitted"
    assert len(episode.trajectories) == (1 if layout == "solo" else 4)
    slips = [turn for t in episode.trajectories for turn in t.turns if turn.slip]
    assert bool(slips) == (slip_rate > 0)
    assert all(turn.failed or turn.parse_error for turn in slips)


def test_equal_specs_give_equal_records_but_for_the_clock() -> None:
    wanted, task = spec("bash_minimal", "team", 100), shout_task(0.5)
    assert timeless(blueprint(wanted, task)) == timeless(blueprint(wanted, task))


def test_more_effort_means_more_checking() -> None:
    turns = [blueprint(spec("tool_json", "solo", b), shout_task()).turns for b in (50, 75, 100)]
    assert turns == sorted(set(turns))


def test_every_reply_sees_its_own_context_and_the_result_of_its_action() -> None:
    (trajectory,) = blueprint(spec(), shout_task()).trajectories
    roles = [m.role for m in trajectory.messages]
    assert roles == ["system", "user"] + ["assistant", "user"] * (len(trajectory.turns) - 1) + ["assistant"]
    assert "one two" in trajectory.messages[3].content
    assert json.loads(trajectory.tools_json)[0]["name"] == "bash"


def test_a_team_s_mail_is_in_the_events_and_in_the_views() -> None:
    episode = blueprint(spec("tool_json", "team", 100), shout_task())
    mails = [json.loads(e.detail_json) for e in episode.events if e.kind == "mail"]
    assert [m["to"] for m in mails] == ["teammate_1", "lead", "teammate_2", "lead", "reviewer", "lead"]
    lead = next(t for t in episode.trajectories if t.agent == "lead")
    assert any("Message from reviewer" in m.content for m in lead.messages)
    assert [e.seq for e in episode.events] == list(range(len(episode.events)))


def _said(trajectory: Trajectory, turn: int) -> str:
    return trajectory.messages[trajectory.turns[turn].message].content


@pytest.mark.parametrize("steps", [1, 2, 3, 6])
def test_who_edits_has_read_what_is_edited(steps: int) -> None:
    task = shout_task()
    explore = [step("explore", f"cat in.txt # {i}") for i in range(steps)]
    task = task.model_copy(update={"blueprint": [*explore, *task.blueprint[1:]]})
    one, two = blueprint(spec("bash_minimal", "team"), task).trajectories[1:3]
    assert "in.txt # 0" in _said(one, 0)
    assert f"in.txt # {steps - 1}" in _said(two, 0) or f"in.txt # {steps // 2}" in _said(two, 0)
    played = [a.arguments_json for t in (one, two) for turn in t.turns for a in turn.actions]
    assert all(any(f"in.txt # {i}" in text for text in played) for i in range(steps))


def test_a_report_quotes_commands_with_outputs_and_no_slip() -> None:
    episode = blueprint(spec("tool_json", "team", 100), shout_task(0.9))
    reports = {t.agent: json.loads(t.turns[-1].actions[0].arguments_json)["answer"] for t in episode.trajectories}
    assert "$ cat in.txt\none two" in reports["teammate_1"]
    assert "$ tr a-z A-Z < in.txt > out.txt\n(no output)" in reports["teammate_2"]
    assert "$ cat out.txt\nONE TWO" in reports["reviewer"]
    assert "$ wc -w out.txt\n2 out.txt" in reports["reviewer"]
    assert any(turn.slip for t in episode.trajectories for turn in t.turns)
    assert not any("not found" in text or "No such file" in text for text in reports.values())


def test_a_report_is_short_and_keeps_whole_lines() -> None:
    task = shout_task()
    long = step("explore", "seq 1000 3000")
    task = task.model_copy(update={"blueprint": [long, *task.blueprint[1:]]})
    lead, one = blueprint(spec("bash_minimal", "team"), task).trajectories[:2]
    report = _said(one, 1)
    assert "$ seq 1000 3000\n1000\n1001\n" in report and "\n...\n" in report
    assert len(report) < 900 and "left out" not in report
    assert "\n1001\n" in _said(lead, 2)


def test_doing_nothing_fails() -> None:
    episode = play(spec(), ScriptedPolicy({"solo": written("tool_json", submit())}))
    assert (episode.passed, episode.stop_reason) == (False, "submitted")
    assert json.loads(episode.points_json) == {"kept": True, "shouted": False}


def test_breaking_what_passed_fails() -> None:
    script = written("tool_json", bash("tr a-z A-Z < in.txt > out.txt; rm in.txt"), submit())
    assert play(spec(), ScriptedPolicy({"solo": script})).passed is False


def test_turns_run_out() -> None:
    episode = play(spec(), ScriptedPolicy({"solo": ["no call at all"]}), shout_task(turns=4))
    assert (episode.stop_reason, episode.turns, episode.parse_errors) == ("turn_budget", 4, 4)
    assert episode.passed is False


def test_a_team_that_only_waits_is_stopped() -> None:
    script = {"lead": written("tool_json", WAIT)}
    episode = play(spec(layout="team"), ScriptedPolicy(script))
    assert episode.stop_reason == "stalled"


def test_misuse_is_told_to_the_agent() -> None:
    script = written("tool_json", send("nobody", "hello"), send("lead", "me"), submit())
    (lead,) = play(spec(layout="team"), ScriptedPolicy({"lead": script})).trajectories
    assert "no agent nobody" in lead.messages[3].content
    assert "no agent lead" in lead.messages[5].content
    assert lead.turns[0].failed


def test_a_teammate_out_of_turns_wakes_the_lead() -> None:
    script = {
        "lead": written("tool_json", send("teammate_1", "go"), WAIT, submit()),
        "teammate_1": written("tool_json", bash("true")),
    }
    episode = play(spec(layout="team"), ScriptedPolicy(script), shout_task(turns=5))
    assert episode.stop_reason == "submitted"
    assert [len(t.turns) for t in episode.trajectories] == [3, 5]


class _Sampling(ScriptedPolicy):
    """A script whose replies count 3,000 sampled tokens each."""

    async def reply(self, agent: Agent) -> Reply:
        told = await super().reply(agent)
        return replace(told, prompt_ids=(), output_ids=(1,) * 3000, logprobs=(0.0,) * 3000)


class _SamplingTeammate(_Sampling):
    """Only the teammate's replies count."""

    async def reply(self, agent: Agent) -> Reply:
        return await (ScriptedPolicy.reply(self, agent) if agent.name == "lead" else super().reply(agent))


def small_budget() -> Task:
    task = shout_task()
    return task.model_copy(update={"budget": task.budget.model_copy(update={"output_tokens": 6000})})


def test_tokens_run_out() -> None:
    episode = play(spec(), _Sampling({"solo": written("tool_json", bash("true"))}), small_budget())
    assert (episode.stop_reason, episode.turns, episode.output_tokens) == ("token_budget", 2, 6000)


def test_a_teammate_out_of_tokens_is_not_woken_again() -> None:
    script = {
        "lead": written("tool_json", *[send("teammate_1", "go on")] * 5, submit()),
        "teammate_1": written("tool_json", bash("true")),
    }
    episode = play(spec(layout="team"), _SamplingTeammate(script), small_budget())
    assert episode.stop_reason == "submitted"
    assert [len(t.turns) for t in episode.trajectories] == [6, 2]


def test_the_team_shares_one_folder() -> None:
    script = {
        "lead": written("bash_minimal", send("teammate_2", "go"), WAIT, bash("cat note"), submit()),
        "teammate_2": written("bash_minimal", bash("echo from-two > note"), submit()),
    }
    episode = play(spec("bash_minimal", "team"), ScriptedPolicy(script))
    assert any("from-two" in m.content for m in episode.trajectories[0].messages)


class _Failing:
    def __init__(self, error: Exception) -> None:
        self.error, self.ended = error, False

    async def reply(self, agent: Agent) -> Reply:
        raise self.error

    def end(self) -> None:
        self.ended = True


@pytest.mark.parametrize(
    ("error", "reason", "passed"),
    [(EngineUnavailable("gone"), "engine_error", None), (ContextFull("long"), "context_full", False)],
)
def test_an_engine_s_failure_is_data(error: Exception, reason: str, passed: bool | None) -> None:
    policy = _Failing(error)
    episode = play(spec(), policy)
    assert (episode.stop_reason, episode.passed, policy.ended) == (reason, passed, True)


def test_a_process_left_behind_does_not_see_the_verifier() -> None:
    spy = "(while true; do cat /verify/* >> /work/seen 2>/dev/null; done) & tr a-z A-Z < in.txt > out.txt"
    script = written("tool_json", bash(spy), bash("touch seen"), submit())
    assert play(spec(), ScriptedPolicy({"solo": script})).passed


def test_a_long_output_is_clipped_in_the_middle() -> None:
    text = clip("a" * 5000 + "b" * 5000)
    assert len(text) < MAX_OBSERVATION + 100
    assert text.startswith("aaa") and text.endswith("bbb") and "7000 characters" in text
