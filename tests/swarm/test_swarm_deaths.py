"""Who is to blame when a sandbox dies: an agent's doing is a failed episode with a flag, infrastructure's is not."""

import asyncio
import json

import pytest
from swarm_boxes import VERIFY_COMMAND, Boxes, Deaths
from swarm_tasks import blueprint_maker, play_specs, shout_task, spec, timeless

from agents.sandbox.base import Limits, Priority
from agents.sandbox.fake import FakeSandbox
from agents.swarm.admit import Reject, admit
from agents.swarm.subgroup import ATTEMPTS
from pipelines.rows import text_row
from pipelines.samples import samples_of
from schemas.episode import Episode
from schemas.errors import SandboxCrashed, SandboxDied, SandboxError, SandboxExpired, SandboxLost, SandboxUnsupported
from schemas.recipe import ScoreSettings

CRASHED, EXPIRED, LOST = SandboxCrashed("PID 1 is gone"), SandboxExpired("3600 s are over"), SandboxLost("node gone")
WORK = "tr a-z"


def play(deaths: Deaths | None = None, layout: str = "solo", **settings: object) -> tuple[Episode, Boxes]:
    boxes = Boxes(deaths)
    (episode,) = play_specs([spec(layout=layout)], shout_task(), blueprint_maker, boxes.pool(**settings))
    assert boxes.live == 0
    return episode, boxes


def stops(episode: Episode) -> list[str]:
    return [json.loads(e.detail_json)["reason"] for e in episode.events if e.kind == "stop"]


@pytest.mark.parametrize("layout", ["solo", "team"])
def test_a_crash_is_a_failed_episode_with_a_repercussion(layout: str) -> None:
    episode, boxes = play({(0, WORK): CRASHED}, layout)
    assert (episode.stop_reason, episode.passed, episode.repercussion) == ("sandbox_crashed", False, "sandbox_crashed")
    assert (episode.attempts, len(boxes.opened), episode.error) == (1, 1, "PID 1 is gone")
    assert stops(episode) == ["sandbox_crashed"]


def test_the_turn_that_crashed_it_is_in_the_record() -> None:
    (view,) = play({(0, WORK): CRASHED})[0].trajectories
    assert [turn.failed for turn in view.turns] == [False, True]
    assert WORK in view.turns[1].actions[0].arguments_json
    assert view.turns[1].message == len(view.messages) - 1


def test_a_crash_in_the_verification_is_the_agent_s() -> None:
    episode, _ = play({(0, VERIFY_COMMAND): CRASHED})
    assert (episode.stop_reason, episode.passed, episode.repercussion) == ("sandbox_crashed", False, "sandbox_crashed")
    assert stops(episode) == ["sandbox_crashed"]
    assert episode.events[-1].kind == "stop"


def test_a_sample_of_a_crash_is_flagged_and_kept_only_with_the_failed_ones() -> None:
    crashed, _ = play({(0, WORK): CRASHED})
    (sample,) = samples_of(crashed, ScoreSettings())
    assert (sample.repercussion, sample.reward, sample.verdict.reason) == ("sandbox_crashed", 0.0, "not_passed")
    (kept,) = samples_of(crashed, ScoreSettings(require_pass=False))
    assert kept.verdict.keep
    assert text_row(kept).repercussion == "sandbox_crashed"
    (failed,) = samples_of(play()[0].model_copy(update={"passed": False}), ScoreSettings())
    assert (failed.repercussion, failed.verdict.reason) == (None, "not_passed")


def test_an_expired_sandbox_is_a_failed_episode() -> None:
    episode, boxes = play({(0, WORK): EXPIRED})
    assert (episode.stop_reason, episode.passed, episode.repercussion) == ("sandbox_expired", False, None)
    assert (episode.attempts, len(boxes.opened)) == (1, 1)


@pytest.mark.parametrize("word", ["cat in.txt", WORK, VERIFY_COMMAND])
@pytest.mark.parametrize("error", [LOST, SandboxError("no pipes for a command")])
@pytest.mark.parametrize("layout", ["solo", "team"])
def test_what_is_lost_is_played_again_elsewhere(word: str, error: SandboxError, layout: str) -> None:
    episode, boxes = play({(0, word): error}, layout)
    undisturbed, _ = play(layout=layout)
    assert (episode.attempts, len(boxes.opened), undisturbed.attempts) == (2, 2, 1)
    assert episode.passed
    assert timeless(episode) == timeless(undisturbed)


def test_what_is_always_lost_is_undecided() -> None:
    episode, boxes = play({(i, WORK): LOST for i in range(ATTEMPTS)})
    assert (episode.stop_reason, episode.passed, episode.repercussion) == ("sandbox_error", None, None)
    assert episode.attempts == len(boxes.opened) == ATTEMPTS
    (sample,) = samples_of(episode, ScoreSettings(require_pass=False))
    assert (sample.verdict.reason, sample.reward) == ("undecided", None)


def test_no_room_is_undecided() -> None:
    episode, boxes = play(max_live=0)
    assert (episode.stop_reason, episode.passed, len(boxes.opened)) == ("sandbox_error", None, 0)


class _GoneAtPut(Boxes):
    """Its first sandbox is gone before any agent was in it."""

    def __init__(self, error: SandboxDied) -> None:
        super().__init__()
        self.error = error

    async def open(self, limits: Limits, priority: Priority = "latency") -> FakeSandbox:
        box = await super().open(limits, priority)
        if len(self.opened) == 1:
            box.gone = self.error
        return box


@pytest.mark.parametrize("error", [CRASHED, EXPIRED])
def test_a_death_before_the_agent_came_is_not_its_doing(error: SandboxDied) -> None:
    boxes = _GoneAtPut(error)
    (episode,) = play_specs([spec()], shout_task(), blueprint_maker, boxes.pool())
    assert (episode.passed, episode.attempts, episode.repercussion) == (True, 2, None)


class _Cannot(Boxes):
    async def open(self, limits: Limits, priority: Priority = "latency") -> FakeSandbox:
        raise SandboxUnsupported("user namespaces are off")


def test_a_host_that_makes_no_sandbox_stops_the_run() -> None:
    with pytest.raises(SandboxUnsupported):
        play_specs([spec()], shout_task(), blueprint_maker, _Cannot().pool())


def test_priority_reaches_the_sandbox() -> None:
    boxes = Boxes()
    wanted = spec().model_copy(update={"priority": "background"})
    play_specs([wanted], shout_task(), blueprint_maker, boxes.pool())
    assert [box.priority for box in boxes.opened] == ["background"]
    assert wanted.episode_id == spec().episode_id


def admitted(deaths: Deaths) -> tuple[list[Reject], Boxes]:
    boxes = Boxes(deaths)

    async def run() -> list[Reject]:
        pool = boxes.pool()()
        try:
            return await admit(shout_task(), pool, Limits())
        finally:
            await pool.close()

    return asyncio.run(run()), boxes


def test_admission_tries_again_what_was_lost() -> None:
    rejects, boxes = admitted({(0, VERIFY_COMMAND): LOST, (1, WORK): LOST})
    assert (rejects, len(boxes.opened), boxes.live) == ([], 4, 0)


def test_a_task_that_always_ends_its_sandbox_is_refused() -> None:
    rejects, _ = admitted({(i, WORK): CRASHED for i in range(10)})
    assert rejects == [Reject("sandbox_ends", "SandboxCrashed")]


def test_admission_that_is_always_lost_says_nothing_about_the_task() -> None:
    with pytest.raises(SandboxLost):
        admitted({(i, WORK): LOST for i in range(10)})
