"""Best of n from one prefix: the same records as without forking, each whole, the prefix played once."""

import asyncio
import os
import signal
from collections.abc import Callable
from dataclasses import replace

import pytest
from pydantic import ValidationError
from swarm_boxes import VERIFY_COMMAND, Boxes, Deaths
from swarm_tasks import bash, blueprint_maker, play_specs, shout_task, spec, timeless

from agents.engine.base import GenerateRequest, GenerateResult
from agents.runtime import Runtime, run_all
from agents.sandbox.base import Limits, Priority, Snapshot
from agents.sandbox.fake import FakeSandbox
from agents.sandbox.native.host import NativeFactory
from agents.sandbox.pool import Pool, PoolSettings
from agents.sandbox.signals import Reading, Signals
from agents.scaffolds import scaffold
from agents.swarm.blueprint import BlueprintPolicy
from agents.swarm.policy import Agent, EnginePolicy, Reply, ScriptedPolicy
from agents.swarm.spec import EpisodeSpec, plan_episodes, subgroups_of
from agents.swarm.subgroup import ATTEMPTS
from pipelines.samples import score
from schemas.episode import Episode
from schemas.errors import SandboxCrashed, SandboxLost, SandboxRefused, StageError
from schemas.ids import derive_seed
from schemas.recipe import PlaySettings, RolloutSettings, RunConfig, ScoreSettings
from schemas.task import Action, Task


def group(n: int, branch_after: int, layout: str = "solo", effort: int = 100, policy: str = "blueprint") -> list:
    return [
        spec(layout=layout, effort=effort, policy=policy, repeat=i, seed=11 + i, branch_after=branch_after)
        for i in range(n)
    ]


def play(specs: list[EpisodeSpec], task: Task, deaths: Deaths | None = None, maker=blueprint_maker, slots: int = 64):
    boxes = Boxes(deaths)
    episodes = play_specs(specs, task, maker, boxes.pool(), slots)
    assert boxes.live == 0
    assert sorted(e.episode_id for e in episodes) == sorted(s.episode_id for s in specs)
    return {e.provenance.repeat: timeless(e) for e in episodes}, boxes


def unbranched(episode: Episode) -> Episode:
    """The record without what says that it branched."""
    episode = timeless(episode)
    views = [
        t.model_copy(update={"turns": [turn.model_copy(update={"shared": False}) for turn in t.turns]})
        for t in episode.trajectories
    ]
    origin = episode.provenance.model_copy(update={"branch_after": 0})
    blank = {"episode_id": "", "subgroup_id": "", "provenance": origin, "trajectories": views}
    return episode.model_copy(update=blank)


def shared(episode: Episode) -> int:
    return sum(turn.shared for t in episode.trajectories for turn in t.turns)


@pytest.mark.parametrize("branch_after", [0, 1, 2, 3, 4])
def test_forked_repeats_equal_repeats_played_alone(branch_after: int) -> None:
    forked, boxes = play(group(3, branch_after), shout_task())
    for i, lone in enumerate(group(3, 0)):
        alone, _ = play([lone], shout_task())
        assert unbranched(forked[i]) == unbranched(alone[i])
        assert forked[i].passed
        assert shared(forked[i]) == branch_after
    assert boxes.forks == (3 if branch_after else 0)
    assert sum("cat in.txt" in commands for commands in boxes.commands()) == (3 if branch_after == 0 else 1)


def native() -> Pool:
    return Pool(NativeFactory(accept_process_memory_limit=True))


def test_real_sandboxes_too() -> None:
    forked = play_specs(group(3, 2), shout_task(), blueprint_maker, native)
    assert all(e.passed for e in forked)
    for episode in forked:
        lone = group(3, 0)[episode.provenance.repeat]
        (alone,) = play_specs([lone], shout_task(), blueprint_maker, native)
        assert unbranched(episode) == unbranched(alone)


@pytest.mark.parametrize("layout", ["solo", "team"])
@pytest.mark.parametrize("branch_after", range(9))
def test_repeats_with_slips_of_their_own_share_the_prefix_and_pass(layout: str, branch_after: int) -> None:
    task = shout_task(slip_rate=0.5)
    episodes, _ = play(group(4, branch_after, layout), task)
    first = episodes[0]
    for episode in episodes.values():
        assert episode.passed
        assert episode.subgroup_id == first.episode_id
        assert shared(episode) == shared(first) >= branch_after * (layout == "solo")
        for view, other in zip(episode.trajectories, first.trajectories, strict=False):
            own, theirs = ([t for t in v.turns if t.shared] for v in (view, other))
            assert own == theirs
            assert [m.content for m in view.messages][: len(own)] == [m.content for m in other.messages][: len(own)]
    own_parts = {str([t.actions for v in e.trajectories for t in v.turns if not t.shared]) for e in episodes.values()}
    assert len(own_parts) > 1 or branch_after > 4


def test_repeat_0_is_the_same_branched_or_not() -> None:
    task = shout_task(slip_rate=0.5)
    for layout in ("solo", "team"):
        alone, _ = play(group(1, 0, layout), task)
        forked, _ = play(group(3, 3, layout), task)
        assert unbranched(forked[0]) == unbranched(alone[0])


def test_a_prefix_that_ends_the_episode_is_every_repeat() -> None:
    episodes, boxes = play(group(3, 50), shout_task())
    assert len(boxes.opened) == 1
    assert all(e.passed and e.stop_reason == "submitted" and shared(e) == e.turns for e in episodes.values())
    assert [e.trajectories for e in episodes.values()] == [episodes[0].trajectories] * 3
    crashed, boxes = play(group(3, 2), shout_task(), {(0, "tr a-z"): SandboxCrashed("gone")})
    assert len(boxes.opened) == 1
    assert [e.repercussion for e in crashed.values()] == ["sandbox_crashed"] * 3


@pytest.mark.parametrize("branch_after", [0, 2])
def test_a_subgroup_that_goes_on_plays_only_what_is_missing(branch_after: int) -> None:
    specs, task = group(4, branch_after), shout_task(slip_rate=0.5)
    whole, _ = play(specs, task)
    for missing in ([specs[2]], specs[1:3]):
        some, _ = play(missing, task)
        assert some == {s.provenance.repeat: whole[s.provenance.repeat] for s in missing}


@pytest.mark.parametrize(("number", "word"), [(0, "cat in.txt"), (0, "tr a-z"), (1, "wc"), (2, VERIFY_COMMAND)])
def test_what_is_lost_of_a_subgroup_is_played_again(number: int, word: str) -> None:
    specs, task = group(3, 2), shout_task()
    boxes = Boxes({(number, word): SandboxLost("gone")})
    episodes = play_specs(specs, task, blueprint_maker, boxes.pool())
    undisturbed, _ = play(specs, task)
    assert {e.provenance.repeat: timeless(e) for e in episodes} == undisturbed
    assert sorted(e.attempts for e in episodes) == ([2, 2, 2] if number == 0 else [1, 1, 2])


def test_slots_bound_what_plays_at_once() -> None:
    _, boxes = play(group(6, 1), shout_task(), slots=2)
    assert boxes.most <= 2


class _Full(Boxes):
    """A node that says at once that it is full: so many forks are refused."""

    refused, most_refused = 0, 3

    async def fork(self, snapshot: Snapshot, priority: Priority = "latency") -> FakeSandbox:
        if self.refused < self.most_refused:
            self.refused += 1
            raise SandboxRefused("live", "no room")
        return await super().fork(snapshot, priority)


def test_a_fork_waits_for_room() -> None:
    boxes = _Full()
    episodes = play_specs(group(3, 2), shout_task(), blueprint_maker, boxes.pool())
    assert [(e.passed, e.attempts) for e in episodes] == [(True, 1)] * 3
    assert (boxes.refused, boxes.forks) == (3, 3)


def crowd(subgroups: int, repeats: int = 2) -> list[EpisodeSpec]:
    return [
        spec(effort=50 + i, repeat=k, seed=11 + k, branch_after=1) for i in range(subgroups) for k in range(repeats)
    ]


def test_no_room_for_a_fork_gives_the_snapshot_up_and_is_no_lost_attempt(caplog: pytest.LogCaptureFixture) -> None:
    boxes = _Full()
    boxes.most_refused = 6 * ATTEMPTS  # every repeat waits in vain more often than an episode may be begun
    episodes = play_specs(group(3, 2), shout_task(), blueprint_maker, boxes.pool(), room_s=0.02)
    undisturbed, _ = play(group(3, 2), shout_task())
    assert {e.provenance.repeat: timeless(e) for e in episodes} == undisturbed
    assert [e.attempts for e in episodes] == [1, 1, 1]
    assert len([r for r in caplog.records if "no room" in r.getMessage()]) > ATTEMPTS
    assert (boxes.held, boxes.most_held, boxes.live) == (0, 1, 0)


def test_subgroups_whose_snapshots_take_all_room_do_not_wait_for_each_other_for_ever() -> None:
    """Each snapshot keeps 64 MB; with more than two of them no sandbox is let in."""
    boxes, host = Boxes(), Signals()()

    def signals() -> Reading:
        need = Limits().memory_mb + Limits().disk_mb + PoolSettings().free_memory_mb + 40
        return replace(host, memory_mb=need + 64 * (2 - boxes.held))

    open_pool = lambda: Pool(boxes, PoolSettings(), signals)  # noqa: E731
    episodes = play_specs(crowd(6), shout_task(), blueprint_maker, open_pool, room_s=0.3)
    assert [(e.passed, e.attempts) for e in episodes] == [(True, 1)] * 12
    assert boxes.most_held > 2
    assert boxes.held == 0


def run_with(boxes: Boxes, specs: list[EpisodeSpec], concurrency: int, ended: Callable[[Episode], None]) -> None:
    async def run() -> None:
        settings = RunConfig(rollout=RolloutSettings(concurrency=concurrency))
        runtime = Runtime(None, boxes.pool()(), settings)
        try:
            await run_all(runtime, specs, {"task_shout": shout_task()}, ended)
        finally:
            await runtime.close()

    asyncio.run(run())


@pytest.mark.parametrize(("concurrency", "held"), [(1, 1), (3, 1), (4, 2), (7, 3)])
def test_branched_subgroups_times_their_repeats_are_at_most_the_concurrency(concurrency: int, held: int) -> None:
    boxes, ended = Boxes(), []
    run_with(boxes, [*crowd(5), spec(layout="team")], concurrency, ended.append)
    assert len(ended) == 11
    assert all(e.passed for e in ended)
    assert boxes.most_held == held
    assert boxes.most <= concurrency


def test_every_episode_that_ended_was_handed_over_when_the_consumer_stops_the_rest() -> None:
    boxes, ended = Boxes(), []

    def stop(episode: Episode) -> None:
        ended.append(episode)
        if len(ended) == 2:
            raise StageError("enough")

    with pytest.raises(StageError, match="enough"):
        run_with(boxes, group(9, 0), 3, stop)
    verified = sum(any(call.stdin for call in box.calls) for box in boxes.opened)
    assert 2 <= len(ended) == verified < 9
    assert boxes.live == 0


def test_an_engine_is_closed_also_where_the_pool_fails_to() -> None:
    class BadPool(Pool):
        async def close(self) -> None:
            await super().close()
            raise OSError("a folder is busy")

    class Engine(_Engine):
        closed = False

        async def close(self) -> None:
            self.closed = True

    async def run() -> Engine:
        engine = Engine([])
        with pytest.raises(OSError, match="busy"):
            await Runtime(engine, BadPool(Boxes()), RunConfig()).close()
        return engine

    assert asyncio.run(run()).closed


def test_the_death_of_a_zygote_costs_nothing_but_time() -> None:
    """All of one host's sandboxes at once, in the middle of the repeats."""
    factory, task, killed = NativeFactory(accept_process_memory_limit=True), shout_task(), []

    class Killing(BlueprintPolicy):
        async def reply(self, agent: Agent) -> Reply:
            if len(agent.turns) == 3 and not killed:
                killed.extend(zygote.pid for zygote in factory._zygotes.values())
                os.kill(killed[0], signal.SIGKILL)
            return await super().reply(agent)

    def maker(wanted: EpisodeSpec, task: Task, shared) -> Killing:
        return Killing(wanted, task, scaffold("tool_json"), shared)

    episodes = play_specs(group(3, 2), task, maker, lambda: Pool(factory))
    undisturbed = play_specs(group(3, 2), task, blueprint_maker, native)
    assert killed
    assert max(e.attempts for e in episodes) == 2
    by_id = [sorted(map(timeless, some), key=lambda e: e.episode_id) for some in (episodes, undisturbed)]
    assert by_id[0] == by_id[1]


class _Engine:
    """Says what to do by turn, with a note that its seed decides; counts one token for each character."""

    model, context = "m", 4096

    def __init__(self, lines: list[str]) -> None:
        self.lines, self.asked, self.released = lines, [], []

    async def generate(self, request: GenerateRequest) -> GenerateResult:
        self.asked.append(request)
        turn = sum(m.role == "assistant" for m in request.messages)
        note = f"Draw {derive_seed(request.sampling.seed) % 1000}."
        if turn < len(self.lines):
            action = bash(self.lines[turn])
        else:
            action = Action(tool="submit", arguments_json='{"answer": "Done."}')
        text = scaffold("tool_json").write(note, action)
        new = "".join(m.content for m in request.messages if m.role != "assistant")
        return GenerateResult(text, "stop", tuple(map(ord, new[-5:])), tuple(map(ord, text)), None, "v")

    def release(self, conversation: str) -> None:
        self.released.append(conversation)


def engine_maker(engine: _Engine):
    def make(wanted: EpisodeSpec, task: Task, shared) -> EnginePolicy:
        return EnginePolicy(
            engine, scaffold("tool_json"), episode_id=wanted.episode_id, seed=wanted.provenance.seed, effort=50,
            max_reply_tokens=64, temperature=1.0, top_p=1.0, constrain_tools=False,
        )  # fmt: skip

    return make


def test_a_sampling_policy_shares_the_prefix_s_tokens_and_then_draws_by_itself() -> None:
    engine = _Engine(["cat in.txt", "tr a-z A-Z < in.txt > out.txt", "cat out.txt"])
    specs = group(3, 2, policy="engine")
    episodes, _ = play(specs, shout_task(), maker=engine_maker(engine))
    outputs = {i: [t.output_ids for t in e.trajectories[0].turns] for i, e in episodes.items()}
    assert all(out[:2] == outputs[0][:2] for out in outputs.values())
    assert len({str(out[2:]) for out in outputs.values()}) == 3
    for request in engine.asked:
        said = [m.content for m in request.messages if m.role == "assistant"]
        assert sum(len(text) for text in said) + 5 * len(said) == len(request.context_ids)
    # Two shared turns once, two of its own for each.
    assert len(engine.asked) == 2 + 3 * 2
    assert {name.split("/")[0] for name in engine.released} == {s.episode_id for s in specs}
    alone, _ = play(group(1, 0, policy="engine"), shout_task(), maker=engine_maker(_Engine(engine.lines)))
    assert unbranched(alone[0]) == unbranched(episodes[0])


@pytest.mark.parametrize("layout", ["solo", "team"])
def test_what_a_subgroup_shares_is_trained_once(layout: str) -> None:
    episodes, _ = play(group(3, 3, layout), shout_task(slip_rate=0.5))
    samples = score(episodes.values(), ScoreSettings())
    assert {s.repeat for s in samples if s.verdict.keep} == {0, 1, 2}
    for sample in samples:
        for turn in sample.turns:
            good = not turn.slip and turn.parse_error is None
            assert sample.trained[turn.message] == (good and (sample.repeat == 0 or not turn.shared))
    shared_ones = [s.repeat for s in samples for t in s.turns if t.shared and s.trained[t.message]]
    assert shared_ones and set(shared_ones) == {0}


def test_of_repeats_that_are_equal_the_first_is_trained_on() -> None:
    episodes, _ = play(group(4, 50), shout_task())
    reasons = {s.repeat: s.verdict.reason for s in score(episodes.values(), ScoreSettings())}
    assert reasons == {0: "kept", 1: "nothing_trained", 2: "nothing_trained", 3: "nothing_trained"}
    episodes, _ = play(group(4, 1), shout_task())
    reasons = {s.repeat: s.verdict.reason for s in score(episodes.values(), ScoreSettings())}
    assert reasons == {0: "kept", 1: "duplicate", 2: "duplicate", 3: "duplicate"}


def test_repeats_are_compared_with_each_other() -> None:
    good, bad = "tr a-z A-Z < in.txt > out.txt", "true"

    def maker(wanted: EpisodeSpec, task: Task, shared) -> ScriptedPolicy:
        lines = ["cat in.txt", good if wanted.provenance.repeat else bad]
        actions = [*map(bash, lines), Action(tool="submit", arguments_json='{"answer": ""}')]
        return ScriptedPolicy({"solo": [scaffold("tool_json").write("So.", a) for a in actions]})

    episodes, _ = play(group(4, 1), shout_task(), maker=maker)
    samples = score(episodes.values(), ScoreSettings())
    assert sorted(s.advantage for s in samples) == [-0.75, 0.25, 0.25, 0.25]


def config(**play_settings) -> RunConfig:
    facts = {"policy": "engine", "repeats": 2, "efforts": [50], "layouts": ["solo"], "scaffolds": ["tool_json"]}
    return RunConfig(seed=3, rollout=RolloutSettings(plays=[PlaySettings.model_validate(facts | play_settings)]))


def test_ids_of_the_first_version_are_kept() -> None:
    assert spec().episode_id == "episode_04960c84d43b0b8673c6e65b"
    planned = plan_episodes([shout_task()], config())
    assert [s.episode_id for s in planned] == ["episode_358f752afa66d35a01ed2d70", "episode_bda3bc5cdff07550d086d08a"]
    assert [s.prefix.episode_id for s in planned] == [planned[0].episode_id] * 2


def test_branching_changes_ids_where_there_is_something_to_branch() -> None:
    ids = {s.episode_id for s in plan_episodes([shout_task()], config())}
    assert ids.isdisjoint(s.episode_id for s in plan_episodes([shout_task()], config(branch_after=1)))
    with pytest.raises(ValidationError, match="branch_after needs repeats above 1"):
        config(repeats=1, branch_after=1)


def test_what_the_id_knows_tells_groups_apart() -> None:
    plays = [
        PlaySettings(policy="engine", repeats=2, max_turns=n, max_reply_tokens=m) for n, m in ((3, 9), (4, 9), (4, 8))
    ]
    settings = RunConfig(rollout=RolloutSettings(plays=plays))
    subgroups = subgroups_of(plan_episodes([shout_task()], settings))
    assert len(subgroups) == 3 * 12
    assert {len(some) for some in subgroups} == {2}
