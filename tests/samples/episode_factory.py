"""Episodes as the swarm writes them, small, for tests of scoring, rows and shards."""

import random
from typing import Any

from byte_tokenizer import ByteTokenizer

from agents.engine.base import ChatTurn
from schemas.episode import ChatMessage, Episode, Provenance, Trajectory, Turn
from schemas.ids import content_id


def trajectory(seed: Any, turns: int = 3, sampled: bool = False, agent: str = "solo", **flags: Any) -> Trajectory:
    """A conversation with `turns` replies. `flags`: lists of turn numbers under slip, parse_error, error."""
    rng, tokenizer = random.Random(str(seed)), ByteTokenizer()
    messages = [ChatMessage(role="system", content=f"Effort {seed}"), ChatMessage(role="user", content=f"do {seed}")]
    made: list[Turn] = []
    start = 0
    for index in range(turns):
        reply = f"reply {rng.random()}"
        ids: dict[str, Any] = {}
        if sampled:
            before = [ChatTurn(m.role, m.content) for m in messages[start:]]
            closed = not made or made[-1].finish_reason == "stop"
            output = [*rng.choices(range(256), k=rng.randint(1, 6)), *([257] if index % 2 == 0 else [])]
            ids = {
                "prompt_ids": tokenizer.chat_prefix(before, first=index == 0, closed=closed),
                "output_ids": output,
                "logprobs": [-rng.random() for _ in output],
                "policy_version": "v1",
            }
        messages.append(ChatMessage(role="assistant", content=reply))
        made.append(
            Turn(
                index=index,
                message=len(messages) - 1,
                actions=[],
                parse_error="unreadable" if index in flags.get("parse_error", ()) else None,
                slip=index in flags.get("slip", ()),
                finish_reason="error" if index in flags.get("error", ()) else ("stop" if index % 2 == 0 else "length"),
                command_s=0.25,
                **ids,
            )
        )
        start = len(messages)
        messages.append(ChatMessage(role="user", content=f"observation {index}"))
    return Trajectory(agent=agent, role=agent, messages=messages, tools_json="[]", turns=made)


def episode(
    seed: Any, *, passed: bool | None = True, policy: str = "blueprint", repeat: int = 0, **changes: Any
) -> Episode:
    """One episode. `changes`: fields of Episode, and `views`: its trajectories."""
    views = changes.pop("views", None) or [trajectory(seed, sampled=policy == "engine")]
    facts = {
        "policy": policy,
        "model": "m" if policy == "engine" else None,
        "scaffold": changes.pop("scaffold", "tool_json"),
        "layout": "solo" if len(views) == 1 else "team",
        "effort": changes.pop("effort", 50),
    }
    task_id = changes.pop("task_id", "task_1")
    fields: dict[str, Any] = {
        "episode_id": content_id("episode", task_id, str(seed), repeat, facts),
        "subgroup_id": content_id("episode", task_id, facts),
        "task_id": task_id,
        "pattern_id": "pattern_1",
        "environment": "table_work",
        "kind": "table_work/sum",
        "split": "train",
        "provenance": Provenance(**facts, repeat=repeat, seed=1),
        "trajectories": views,
        "events": [],
        "stop_reason": "submitted",
        "passed": passed,
        "turns": sum(len(view.turns) for view in views),
        "parse_errors": 0,
        "failed_actions": 0,
    }
    return Episode.model_validate(fields | facts | changes)
