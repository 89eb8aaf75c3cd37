"""Scheduling without a model: nothing is lost, shared while written or starved, over random schedules."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from recorder import Recorder, recorder, request

from agents.engine.scheduler import Scheduler
from agents.engine.sequence import BLOCK, Sequence
from schemas.errors import ConfigError, ContextFull, EngineError

# Actions of a plan: a kind, and a number that chooses the objects.
KINDS = ["add"] * 6 + ["step"] * 7 + ["cancel", "pause", "resume", "resume", "move", "release", "flush", "clock"]
ACTION = st.tuples(st.sampled_from(KINDS), st.integers(0, 2**30))


def act(made: Recorder, kind: str, number: int, added: list[Sequence], cancelled: set[Sequence]) -> None:
    scheduler, rng = made.scheduler, random.Random(number)
    here = [s for s in added if s.state != "done"]
    paused = [s for s in here if s.state == "paused"]
    going = [s for s in here if s.state != "paused"]
    if kind == "add":
        sequence = arbitrary(rng, added)
        if sequence.prompt + sequence.limit <= scheduler.capacity_tokens:
            added.append(sequence)
            scheduler.add(sequence)
        else:
            with pytest.raises(ContextFull):
                scheduler.add(sequence)
    elif kind == "step":
        for _ in range(rng.randint(1, 6)):
            made.step()
    elif kind == "cancel" and here:
        cancel(made, rng.choice(here), cancelled)
    elif kind == "pause" and going:
        scheduler.pause(rng.choice(going))
    elif kind == "resume" and paused:
        scheduler.resume(rng.choice(paused))
    elif kind == "move" and paused:
        move(made, rng.choice(paused), added, cancelled)
    elif kind == "release" and added:
        scheduler.release(rng.choice(added).conversation)
    elif kind == "flush":
        made.flush()
        assert all(s.mixed or not s.table for s in here)
    elif kind == "clock":
        made.now += rng.choice([1, 400, 700])
    scheduler.audit()


def arbitrary(rng: random.Random, added: list[Sequence]) -> Sequence:
    """A new conversation with a shared beginning, a next turn, a fork of one, or a repetition."""
    more = {"priority": rng.choice([0, 0, 0, 1, 2]), "owner": rng.choice(["", "", "x", "y"])}
    old = rng.choice(added) if added and rng.random() < 0.5 else None
    if old is None:
        head, own = rng.choice([0, 1]), rng.randint(0, 40)
        ids = [100 + head] * rng.choice([0, 20, 64, 90]) + [rng.randint(1000, 1003)] * own + [5]
        return request(rng.choice("abcdef"), ids, rng.randint(1, 30), **more)
    keep = len(old.ids) if rng.random() < 0.6 else rng.randint(0, len(old.ids))
    name = old.conversation if rng.random() < 0.7 else rng.choice("abcdefgh")
    ids = old.ids[:keep] + [rng.randint(2000, 2003)] * rng.randint(0, 20)
    return request(name, ids or [5], rng.randint(1, 30), context=keep, **more)


def cancel(made: Recorder, sequence: Sequence, cancelled: set[Sequence]) -> None:
    made.scheduler.cancel(sequence)
    assert sequence.state == "done"
    assert sequence.table == sequence.window == []
    cancelled.add(sequence)


def move(made: Recorder, sequence: Sequence, added: list[Sequence], cancelled: set[Sequence]) -> None:
    """Write a paused sequence to disk, drop it and adopt it again."""
    if sequence.computed < sequence.kept:
        return  # what the window lacks in front of a replay cannot be written to disk
    saved = made.saved(sequence)
    again = moved(sequence)
    cancel(made, sequence, cancelled)
    if made.scheduler.adopt(again):
        made.restore(again, saved)
        added.append(again)
    else:
        assert again.table == again.window == []


def moved(sequence: Sequence) -> Sequence:
    again = request(sequence.conversation, sequence.ids, sequence.limit, priority=sequence.priority)
    again.prompt, again.computed, again.mixed = sequence.prompt, sequence.computed, sequence.mixed
    again.state = "paused"
    return again


@given(
    window=st.sampled_from([None, 24, 40]),
    plan=st.lists(ACTION, min_size=30, max_size=90),
    blocks=st.integers(6, 50),
    max_batch=st.integers(1, 6),
    chunk=st.integers(6, 100),
    slack=st.integers(0, 30),
)
def test_random_schedules(window, plan, blocks, max_batch, chunk, slack):
    sliding = {"window": window, "window_blocks": window // BLOCK + 2 + slack} if window else {}
    made = recorder(max_batch, blocks, step_tokens=chunk, **sliding)
    added: list[Sequence] = []
    cancelled: set[Sequence] = set()
    for kind, number in plan:
        act(made, kind, number, added, cancelled)
    for sequence in added:
        if sequence.state == "paused":
            made.scheduler.resume(sequence)
    made.run()
    assert set(made.done) | cancelled == set(added)
    assert len(made.done) == len(set(made.done))
    assert all(len(s.output) == s.limit for s in made.done)
    state = made.metrics
    assert (state.waiting, state.running, state.paused) == (0, 0, 0)
    for sequence in added:
        made.scheduler.release(sequence.conversation)
    assert made.metrics.blocks_used == made.metrics.window_used == 0
    assert len(made.scheduler._line._fairness) == 0


HEAD = list(range(1000, 1600))


def agents(count: int, **more) -> list[Sequence]:
    """Agents with 600 tokens in common and 30 of their own."""
    return [request(f"agent{i}", [*HEAD, *[2000 + i] * 30], 5, **more) for i in range(count)]


def test_agents_that_arrive_at_once_compute_their_beginning_once():
    made = recorder(32, 600)
    made.run(*agents(32))
    # 37 whole blocks are shared; the rest of 600 and 30 tokens of their own are not.
    assert made.metrics.prefilled == 592 + 32 * 38
    assert made.metrics.cached == 31 * 592
    late = request("late", [*HEAD, 1, 2], 4)
    made.run(late)
    assert late.cached == 592


@pytest.mark.parametrize("how", ["cancel", "pause"])
def test_who_waits_for_a_maker_that_leaves_goes_on_alone(how):
    made = recorder(4, 600, step_tokens=64)
    maker, *others = agents(3)
    for sequence in (maker, *others):
        made.scheduler.add(sequence)
    made.step()
    assert maker.computed == 64
    assert [s.computed for s in others] == [0, 0]
    getattr(made.scheduler, how)(maker)
    made.run()
    assert made.done == others
    assert sum(made.prefilled[s] for s in others) == 592 - 64 + 2 * 38
    if how == "pause":
        made.scheduler.resume(maker)
        made.run()
        assert made.prefilled[maker] == 64 + 38  # what others made meanwhile it takes from them


def test_replies_go_first_and_prompts_fill_the_step():
    made = recorder(4, 600, step_tokens=70)
    short, long = request("a", [1] * 20, 50), request("b", [2] * 200, 5)
    made.scheduler.add(short)
    made.step()
    made.scheduler.add(long)
    step = made.step()
    assert [(s.sequence, s.start, s.count) for s in step.slices] == [(short, 20, 1), (long, 0, 64)]


def test_tokens_that_a_grammar_forces_leave_room_for_other_replies():
    made = recorder(2, 100, step_tokens=8)
    forced, other = request("a", [1] * 4, 50), request("b", [2] * 4, 50)
    for sequence in (forced, other):
        made.scheduler.add(sequence)
    made.step()
    forced.ids += [6] * 20
    step = made.step()
    assert [(part.sequence, part.count) for part in step.slices] == [(forced, 7), (other, 1)]


def test_a_higher_priority_takes_a_place_and_the_parked_one_continues_without_prefill():
    made = recorder(2, 100)
    first, second = request("a", [1] * 40, 20), request("b", [2] * 40, 20)
    for sequence in (first, second):
        made.scheduler.add(sequence)
        made.until(sequence, 2)
    urgent = request("c", [3] * 40, 20, priority=1)
    made.scheduler.add(urgent)
    made.step()
    assert (first.state, second.state, urgent.state) == ("running", "waiting", "running")
    held = list(second.table)
    assert held
    made.until(urgent, 19)
    assert second.table == held
    made.run()
    assert made.metrics.parked == 1
    assert made.metrics.preempted == 0
    assert made.metrics.prefilled == 120


def test_a_higher_priority_takes_blocks_and_nothing_sampled_is_lost():
    made = recorder(4, 10)
    low = request("a", [1] * 60, 40)
    made.scheduler.add(low)
    made.until(low, 20)
    made.flush()
    reply = list(low.output)
    high = request("b", [3] * 120, 20, priority=5)
    made.scheduler.add(high)
    made.step()
    assert (low.state, low.table, low.computed, low.mixed) == ("waiting", [], 0, False)
    assert low.output == reply
    made.run()
    assert made.done == [high, low]
    assert low.output[: len(reply)] == reply
    assert made.metrics.preempted == 1


def test_when_blocks_run_out_the_one_that_started_last_gives_way():
    made = recorder(6, 24)
    sequences = [request(name, [i] * 40, 200) for i, name in enumerate("abcdef")]
    made.run(*sequences)
    assert made.done == sequences
    # Each comes back only when its whole reply fits; without that rule there are nine.
    assert 1 <= made.metrics.preempted <= 6


def test_who_gives_way_leaves_the_step_that_is_being_planned():
    made = recorder(2, 9)
    first, second = request("a", [1] * 32, 60), request("b", [2] * 32, 60)
    for sequence in (first, second):
        made.scheduler.add(sequence)
    made.step()
    made.scheduler.pause(first)
    made.scheduler.resume(first)
    while not made.metrics.preempted:
        step = made.step()
    # The second one, planned first by now, took the last block, and the first one needed another in the same step.
    assert [part.sequence for part in step.slices] == [first]
    assert second.table == []
    made.run()
    assert made.done == [first, second]


def test_paused_ones_may_hold_everything_and_the_rest_waits_without_spinning():
    made = recorder(4, 8)
    holder, other = request("a", [1] * 100, 20), request("b", [2] * 100, 20)
    made.scheduler.add(holder)
    made.until(holder, 1)
    made.scheduler.pause(holder)
    made.scheduler.add(other)
    made.step()
    assert not made.scheduler.busy
    assert made.metrics.waiting == made.metrics.paused == 1
    made.scheduler.resume(holder)
    made.run()
    assert made.done == [holder, other]
    assert made.prefilled[holder] == 100


def test_pausing_keeps_blocks_and_resuming_computes_nothing_again():
    made = recorder()
    sequence = request("a", [1] * 40, 10)
    made.scheduler.add(sequence)
    made.until(sequence, 5)
    table, computed = list(sequence.table), sequence.computed
    made.scheduler.pause(sequence)
    assert not made.scheduler.busy
    made.run(request("b", [2] * 40, 10))
    assert (sequence.table, sequence.computed, sequence.state) == (table, computed, "paused")
    made.scheduler.resume(sequence)
    made.run()
    assert made.prefilled[sequence] == 40


def test_a_resumed_one_starts_before_new_ones():
    made = recorder(1)
    resumed, running, new = (request(name, [ord(name)] * 40, 10, owner="one") for name in "abc")
    made.scheduler.add(resumed)
    made.step()
    made.scheduler.pause(resumed)
    for sequence in (running, new):
        made.scheduler.add(sequence)
    made.step()
    made.scheduler.resume(resumed)
    made.run()
    assert made.done == [running, resumed, new]


@pytest.mark.parametrize("window", [None, 40])
def test_a_paused_sequence_is_adopted_elsewhere_without_prefill(window):
    here, there = (recorder(window=window, window_blocks=40 if window else 0) for _ in range(2))
    sequence = request("a", list(range(100)), 20)
    here.scheduler.add(sequence)
    here.until(sequence, 9)
    here.scheduler.pause(sequence)
    saved, again = here.saved(sequence), moved(sequence)
    here.scheduler.cancel(sequence)
    assert here.metrics.blocks_used == here.metrics.window_used == 0
    assert there.scheduler.adopt(again)
    assert not there.scheduler.busy
    there.restore(again, saved)
    there.scheduler.resume(again)
    there.run()
    assert there.metrics.prefilled == there.metrics.replayed == 0
    follower = request("b", again.ids, 1)
    there.run(follower)
    assert follower.cached == 112


def test_new_weights_leave_nothing_to_be_found():
    made = recorder()
    made.run(request("old", list(range(100)), 4))
    running = request("a", list(range(200, 300)), 20)
    made.scheduler.add(running)
    made.until(running, 3)
    made.flush()
    assert running.mixed
    made.run()
    again = [request("old", list(range(100)), 4), request("a", [*running.ids, 5], 4)]
    made.run(*again)
    assert [s.cached for s in again] == [0, 0]
    assert not any(s.mixed for s in again)


def test_cancel_is_for_any_state():
    made = recorder(1)
    running, waiting, paused, done = (request(name, [ord(name)] * 40, 9) for name in "abcd")
    made.run(done)
    for sequence in (paused, running, waiting):
        made.scheduler.add(sequence)
    made.scheduler.pause(paused)
    made.step()
    made.scheduler.cancel(done)
    for sequence in (running, waiting, paused):
        made.scheduler.cancel(sequence)
    assert not made.scheduler.busy
    made.scheduler.release("d")
    assert made.metrics.blocks_used == 0
    made.scheduler.audit()


def test_wrong_moves_are_refused():
    scheduler = Scheduler(4, 10)
    sequence = request("a", [1] * 20)
    for move_ in (scheduler.resume, scheduler.pause, scheduler.finish, scheduler.adopt):
        with pytest.raises(EngineError):
            move_(sequence)
    with pytest.raises(ContextFull):
        scheduler.add(request("a", [1] * 160, 1))
    assert scheduler.capacity_tokens == 160
    for wrong in ({"step_tokens": 3}, {"window": 64, "window_blocks": 4}, {"window": 0, "window_blocks": 9}):
        with pytest.raises(ConfigError):
            Scheduler(4, 10, **wrong)
