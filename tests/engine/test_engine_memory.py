"""What is found again: turns, forks, prefixes, windows and their replay."""

import pytest
from recorder import Recorder, recorder, request

from agents.engine.sequence import BLOCK, Sequence


def first_turn(made: Recorder, name: str = "a") -> Sequence:
    """100 tokens and a reply of 11, the last of which is not computed."""
    sequence = request(name, list(range(100)), 11)
    made.run(sequence)
    return sequence


def next_turn(last: Sequence, new: int = 30, name: str = "a", agree: int | None = None, limit: int = 4) -> Sequence:
    ids = last.ids[:agree]
    return request(name, [*ids, *range(5000, 5000 + new)], limit, context=len(ids))


def test_a_next_turn_computes_only_what_is_new():
    made = recorder()
    second = next_turn(first_turn(made))
    made.run(second)
    assert second.cached == 110
    assert made.prefilled[second] == 31
    assert made.copies == 0  # the block of tokens 96-109 changed hands
    assert (made.metrics.turn_hits, made.metrics.turn_misses) == (1, 0)


@pytest.mark.parametrize("agree", [5, 64, 70, 95, 100])
def test_a_changed_next_turn_uses_what_agrees_and_leaves_the_old_blocks_alone(agree):
    made = recorder()
    first = first_turn(made)
    changed = next_turn(first, agree=agree)
    made.run(changed)
    assert changed.cached == agree
    # Blocks that can be found are copied before they are written.
    assert made.copies == (1 if agree in (5, 70, 95) else 0)
    same = request("b", first.ids[:97], 1)
    made.run(same)
    assert same.cached == 96


def test_the_last_token_of_a_prompt_is_always_computed():
    made = recorder()
    first = first_turn(made)
    for tokens in (96, 97, 110):
        again = request("a", first.ids[:tokens], 1)
        made.run(again)
        assert again.cached >= 80
        assert made.prefilled[again] == tokens - again.cached >= 1


def test_two_requests_of_one_conversation_at_once():
    made = recorder()
    first = first_turn(made)
    forks = [next_turn(first, new=20), next_turn(first, new=25), next_turn(first, name="b")]
    for fork in forks:
        fork.owner = "one"  # so that they start in this order
    made.run(*forks)
    # The first one continues the turn; the others wait for the block that it fills, and for the next one.
    assert [s.cached for s in forks] == [110, 128, 128]
    assert made.done == [first, *forks]


def test_a_turn_ends_with_its_time_its_release_or_its_conversation_s_next_call():
    made = recorder(turn_ttl_s=60)
    first = first_turn(made)
    made.now = 59
    made.step()
    assert made.metrics.blocks_used == 1
    made.now = 60
    made.step()
    assert made.metrics.blocks_used == 0
    second = next_turn(first)
    made.run(second)
    assert second.cached == 96
    assert (made.metrics.turn_hits, made.metrics.turn_misses) == (0, 1)
    made.scheduler.release("a")
    assert made.metrics.blocks_used == 0
    made.run(next_turn(second), request("a", [9] * 20, 1))
    assert made.metrics.blocks_used == 1


def test_turns_give_way_the_oldest_first_before_running_ones_do():
    made = recorder(4, 16)
    turns = [request(name, [ord(name)] * 20, 5) for name in "abc"]
    made.run(*turns)
    assert made.metrics.blocks_used == 3
    big = request("big", [1] * 200, 10)
    made.run(big)
    assert made.metrics.preempted == 0
    assert made.scheduler._memory.turns.get("a") is None
    assert made.scheduler._memory.turns.get("c") is not None


def test_a_released_conversation_s_blocks_go_first_and_shared_ones_stay():
    made = recorder(4, 20)
    shared = list(range(64))
    for name in ("over", "other"):
        made.run(request(name, [*shared, *[ord(name[1])] * 64], 1))
    made.run(request("older", [3] * 64, 1))
    made.scheduler.release("other")
    made.run(request("new", [4] * 128, 1))
    found = {}
    for name, ids in {"over": [*shared, *[ord("v")] * 64], "other": [*shared, *[ord("t")] * 64]}.items():
        sequence = request(name + "2", [*ids, 1], 1)
        made.run(sequence)
        found[name] = sequence.cached
    assert found == {"over": 128, "other": 64}


def test_when_room_is_short_the_end_of_a_beginning_goes_first():
    made = recorder(4, 12)
    made.run(request("a", list(range(128)), 1), request("b", [4] * 128, 1))
    again = request("c", list(range(129)), 1)
    made.run(again)
    assert again.cached == 64


@pytest.mark.parametrize("tokens", [5, 100])
def test_a_turn_of_mixed_weights_is_not_continued(tokens):
    made = recorder()
    sequence = request("a", list(range(tokens)), 8)
    made.scheduler.add(sequence)
    made.until(sequence, 5)
    made.flush()
    made.run()
    second = next_turn(sequence)
    made.run(second)
    assert second.cached == 0


WINDOW = 40
SLIDING = {"window": WINDOW, "window_blocks": 40}


def test_only_the_window_is_kept():
    made = recorder(**SLIDING)
    sequence = request("a", list(range(200)), 60)
    made.scheduler.add(sequence)
    while made.scheduler.busy:
        made.step()
        if sequence.state == "running":
            first = (sequence.computed - WINDOW + 1) // BLOCK
            assert [block >= 0 for block in sequence.window] == [i >= first for i in range(len(sequence.window))]
            assert made.metrics.window_used == len(sequence.window) - first <= 4
    assert made.metrics.window_used <= 4  # the turn's
    assert made.metrics.blocks_used == 1
    made.scheduler.release("a")
    assert made.metrics.window_used == 0


def test_a_live_turn_brings_its_window():
    made = recorder(**SLIDING)
    second = next_turn(first_turn(made))
    made.run(second)
    assert second.cached == 110
    assert made.prefilled[second] == 31
    assert made.metrics.replayed == 0


@pytest.mark.parametrize("how", ["late", "released", "other"])
def test_a_missing_window_is_filled_by_a_bounded_replay(how):
    made = recorder(**SLIDING, turn_ttl_s=60)
    first = first_turn(made)
    if how == "late":
        made.now = 61
    if how == "released":
        made.scheduler.release("a")
    second = next_turn(first, name="b" if how == "other" else "a")
    made.scheduler.add(second)
    step = made.step()
    # 96 tokens are found; the replay begins with the whole block that holds token 96 - 40.
    assert second.kept == second.cached == 96
    assert step.slices[0].start == 48
    assert made.metrics.replayed == 96 - 48
    made.run()
    assert made.metrics.replayed == 96 - 48
    assert made.copies == 0


def test_the_length_of_a_replay_is_a_choice():
    made = recorder(**SLIDING, replay_tokens=96)
    first = first_turn(made)
    made.run(next_turn(first, name="b"))
    assert made.metrics.replayed == 96


def test_who_waits_for_a_maker_replays_once():
    made = recorder(4, **SLIDING, step_tokens=64)
    sequences = [request(name, [*range(320), ord(name)], 2) for name in "ab"]
    made.run(*sequences)
    assert sequences[1].cached == 320
    assert made.metrics.replayed == 48
    assert made.metrics.prefilled == 320 + 2


def test_a_prompt_is_cut_to_what_the_window_blocks_hold():
    made = recorder(window=WINDOW, window_blocks=5)
    sequence = request("a", list(range(300)), 10)
    made.run(sequence)
    assert made.done == [sequence]
    assert made.metrics.preempted == 0
