"""The four log formats that `make_usage` writes: a partner's conversations in, file name → content out."""

import json
import random
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

Conversation = dict[str, Any]


def calls_of(step: dict[str, Any]) -> list[dict[str, Any]]:
    return step.get("calls") or ([step] if "call" in step else [])


def result_text(call: dict[str, Any]) -> str:
    result = call["result"]
    return result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)


def token(rng: random.Random, length: int) -> str:
    return "".join(rng.choices("ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz23456789", k=length))


def hex_id(rng: random.Random, digits: int) -> str:
    return f"{rng.getrandbits(4 * digits):0{digits}x}"


def jsonl(records: list[Any]) -> str:
    return "".join(
        (r if isinstance(r, str) else json.dumps(r, ensure_ascii=False, separators=(",", ":"))) + "\n" for r in records
    )


def chat_messages(steps: list[dict[str, Any]], rng: random.Random) -> Iterator[dict[str, Any]]:
    """Chat-completions messages of a conversation without sub-agents."""
    for step in steps:
        if "user" in step:
            yield {"role": "user", "content": step["user"]}
            continue
        calls = [(f"call_{token(rng, 24)}", call) for call in calls_of(step)]
        message: dict[str, Any] = {"role": "assistant", "content": step.get("say")}
        if calls:
            message["tool_calls"] = [
                {"id": i, "type": "function", "function": {"name": c["call"], "arguments": json.dumps(c["args"])}}
                for i, c in calls
            ]
        yield message
        for i, c in calls:
            yield {"role": "tool", "tool_call_id": i, "name": c["call"], "content": result_text(c)}


def northwind(script: dict[str, Any], chats: list[Conversation]) -> dict[str, str]:
    """OpenAI chat-completions JSONL, two files; one has a line that is no object and one a line cut in the middle."""
    tools = [
        {
            "type": "function",
            "function": {
                "name": name,
                "description": spec["description"],
                "parameters": {
                    "type": "object",
                    "properties": {k: {"type": v} for k, v in spec["args"].items()},
                    "required": list(spec["args"]),
                },
            },
        }
        for name, spec in script["tools"].items()
    ]
    records: list[Any] = []
    for at, chat in enumerate(chats):
        rng = chat["rng"]
        messages = [{"role": "system", "content": script["system"]}, *chat_messages(chat["steps"], rng)]
        spent = {
            "prompt_tokens": len(json.dumps(messages)) // 4,
            "completion_tokens": sum(len(json.dumps(m)) // 4 for m in messages if m["role"] == "assistant"),
        }
        record = {
            "id": f"chatcmpl-{token(rng, 29)}",
            "created": 1770100000 + 90_000 * at + rng.randrange(20_000),
            "model": "gpt-5-mini",
            "messages": messages,
            "tools": tools,
            "usage": spent | {"total_tokens": sum(spent.values())},
        }
        records.append(record)
    half = len(records) // 2
    cut = jsonl(records[half : half + 1])[:1500]
    return {
        "2026-02.jsonl": jsonl([*records[:3], '"keep-alive"', *records[3:half]]),
        "2026-03.jsonl": jsonl([*records[half : half + 4], cut, *records[half + 4 :]]),
    }


class ClaudeLog:
    """The lines of one Claude Code session file, with its chain of uuids and its clock."""

    def __init__(self, chat: Conversation, start: datetime) -> None:
        self.rng: random.Random = chat["rng"]
        self.now = start
        self.session = str(uuid.UUID(int=self.rng.getrandbits(128), version=4))
        self.repo = chat.get("repo", "shelf")
        self.lines: list[Any] = []

    def add(self, kind: str, message: dict[str, Any], chain: dict[str, Any], **extra: Any) -> None:
        """One line of type `kind`; `chain` holds the parent's uuid and whether this is a sidechain."""
        self.now += timedelta(milliseconds=self.rng.randrange(800, 9000))
        own = str(uuid.UUID(int=self.rng.getrandbits(128), version=4))
        self.lines.append(
            {
                "parentUuid": chain["parent"],
                "isSidechain": chain["side"],
                "userType": "external",
                "cwd": f"/Users/omar/src/{self.repo}",
                "sessionId": self.session,
                "version": "1.0.108",
                "gitBranch": "main",
                "type": kind,
                "message": message,
                "uuid": own,
                "timestamp": self.now.strftime("%Y-%m-%dT%H:%M:%S.") + f"{self.now.microsecond // 1000:03d}Z",
                **extra,
            }
        )
        chain["parent"] = own

    def play(self, steps: list[dict[str, Any]], side: bool) -> None:
        """Writes steps; a message with several blocks takes a line per block, all with the same message id."""
        chain: dict[str, Any] = {"parent": None, "side": side}
        for step in steps:
            if "user" in step:
                self.add("user", {"role": "user", "content": step["user"]}, chain)
                continue
            calls = [(f"toolu_01{token(self.rng, 22)}", call) for call in calls_of(step)]
            blocks: list[dict[str, Any]] = [{"type": "text", "text": step["say"]}] if step.get("say") else []
            blocks += [{"type": "tool_use", "id": i, "name": c["call"], "input": c["args"]} for i, c in calls]
            self.assistant(blocks, bool(calls), chain)
            for i, call in calls:
                self.play(call.get("sub", []), side=True)
                self.result(i, call, chain)

    def assistant(self, blocks: list[dict[str, Any]], called: bool, chain: dict[str, Any]) -> None:
        base = {
            "id": f"msg_01{token(self.rng, 22)}",
            "type": "message",
            "role": "assistant",
            "model": "claude-sonnet-4",
        }
        request = f"req_011C{token(self.rng, 20)}"
        usage = {
            "input_tokens": self.rng.randrange(4, 40),
            "cache_creation_input_tokens": self.rng.randrange(100, 900),
            "cache_read_input_tokens": self.rng.randrange(9000, 22000),
            "output_tokens": max(1, len(json.dumps(blocks)) // 4),
        }
        end = "tool_use" if called else "end_turn"
        for block in blocks:
            message = {**base, "content": [block], "stop_reason": end, "stop_sequence": None, "usage": usage}
            self.add("assistant", message, chain, requestId=request)

    def result(self, call_id: str, call: dict[str, Any], chain: dict[str, Any]) -> None:
        text = result_text(call)
        block: dict[str, Any] = {"tool_use_id": call_id, "type": "tool_result", "content": text}
        if call.get("sub"):
            block["content"] = [{"type": "text", "text": text}]
        if call.get("error"):
            block["is_error"] = True
        outcome: Any = f"Error: {text}" if call.get("error") else {"stdout": text, "interrupted": False}
        self.add("user", {"role": "user", "content": [block]}, chain, toolUseResult=outcome)


def brightfork(_script: dict[str, Any], chats: list[Conversation]) -> dict[str, str]:
    """Claude Code JSONL, a file per session; the second starts with a summary, the fourth holds a line cut short."""
    files = {}
    for at, chat in enumerate(chats):
        log = ClaudeLog(chat, datetime(2026, 5, 4, 8, 30, tzinfo=UTC) + timedelta(hours=5 * at))
        log.play(chat["steps"], side=False)
        if at == 1:
            log.lines.insert(0, {"type": "summary", "summary": "Month end fix", "leafUuid": log.lines[-1]["uuid"]})
        if at == 3:
            log.lines.insert(4, jsonl(log.lines[4:5])[:300])
        files[f"{log.repo}/{log.session}.jsonl"] = jsonl(log.lines)
    return files


def lumen(script: dict[str, Any], chats: list[Conversation]) -> dict[str, str]:
    """Arrays like tau-bench's, one for customers and one for staff; the first holds an item that is no object."""
    desk: list[Any] = []
    staff: list[Any] = []
    for at, chat in enumerate(chats):
        traj = [{"role": "system", "content": script["system"]}, *chat_messages(chat["steps"], chat["rng"])]
        asked = next(s["user"] for s in chat["steps"] if "user" in s)
        item = {
            "task_id": at,
            "reward": chat.get("reward", 1.0),
            "info": {
                "task": {"user_id": chat.get("cid", "walk_in"), "instruction": asked, "outputs": []},
                "source": "user",
                "user_cost": round(chat["rng"].uniform(0.001, 0.009), 6),
            },
            "traj": traj,
            "trial": chat["number"],
        }
        (desk if "reward" in chat else staff).append(item)
    desk.insert(5, "export interrupted")
    return {
        "desk-2026-04.json": json.dumps(desk, indent=1, ensure_ascii=False) + "\n",
        "staff-2026-04.json": json.dumps(staff, indent=1, ensure_ascii=False) + "\n",
    }


class Trace:
    """The OTLP spans of one conversation, in the order in which they end: children before parents."""

    def __init__(self, chat: Conversation, agents: dict[str, str], start: int) -> None:
        self.rng: random.Random = chat["rng"]
        self.agents = agents
        self.trace, self.conversation = hex_id(self.rng, 32), hex_id(self.rng, 16)
        self.now = start
        self.spans: list[dict[str, Any]] = []

    def tick(self) -> int:
        self.now += self.rng.randrange(200, 6000) * 1_000_000
        return self.now

    def end(
        self, span: str, parent: str | None, name: str, started: int, attributes: dict[str, Any], **more: Any
    ) -> None:
        """Appends a finished span. Integers become strings and structures JSON text, as exporters write them."""
        values = [
            {"key": k, "value": {"intValue": str(v)}}
            if isinstance(v, int)
            else {"key": k, "value": {"stringValue": v if isinstance(v, str) else json.dumps(v, ensure_ascii=False)}}
            for k, v in attributes.items()
        ]
        ids = {"traceId": self.trace, "spanId": span} | ({"parentSpanId": parent} if parent else {})
        times = {"startTimeUnixNano": str(started), "endTimeUnixNano": str(self.tick())}
        kind = 3 if name.startswith("chat") else 1
        self.spans.append({**ids, "name": name, "kind": kind, **times, "attributes": values, "status": {}, **more})

    def run(self, agent: str, steps: list[dict[str, Any]], parent: str | None) -> None:
        """One agent's run: a chat span per reply with all messages before it, a span per tool, its own span last."""
        own, started = hex_id(self.rng, 16), self.tick()
        base = {"gen_ai.agent.name": agent, "gen_ai.conversation.id": self.conversation}
        history: list[dict[str, Any]] = []
        for step in steps:
            if "user" in step:
                history.append({"role": "user", "parts": [{"type": "text", "content": step["user"]}]})
                continue
            calls = [(f"call_{token(self.rng, 12)}", call) for call in calls_of(step)]
            history.append(self.reply(agent, step.get("say"), calls, history, own, base))
            for i, call in calls:
                self.tool(i, call, own, base)
                answer = {"type": "tool_call_response", "id": i, "name": call["call"], "result": call["result"]}
                history.append({"role": "tool", "parts": [answer]})
        self.end(own, parent, f"invoke_agent {agent}", started, {"gen_ai.operation.name": "invoke_agent", **base})

    def reply(
        self,
        agent: str,
        text: str | None,
        calls: list[tuple[str, dict[str, Any]]],
        history: list[dict[str, Any]],
        parent: str,
        base: dict[str, Any],
    ) -> dict[str, Any]:
        started = self.tick()
        parts: list[dict[str, Any]] = [{"type": "text", "content": text}] if text else []
        parts += [{"type": "tool_call", "id": i, "name": c["call"], "arguments": c["args"]} for i, c in calls]
        message = {"role": "assistant", "parts": parts}
        attributes = {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": "anthropic",
            "gen_ai.request.model": "claude-sonnet-4",
            **base,
            "gen_ai.system_instructions": [{"type": "text", "content": self.agents[agent]}],
            "gen_ai.input.messages": history,
            "gen_ai.output.messages": [{**message, "finish_reason": "tool_call" if calls else "stop"}],
            "gen_ai.usage.input_tokens": len(json.dumps(history)) // 4 + 60,
            "gen_ai.usage.output_tokens": len(json.dumps(parts)) // 4,
        }
        self.end(hex_id(self.rng, 16), parent, "chat claude-sonnet-4", started, attributes)
        return message

    def tool(self, call_id: str, call: dict[str, Any], parent: str, base: dict[str, Any]) -> None:
        own, started = hex_id(self.rng, 16), self.tick()
        if call.get("sub"):
            self.run(call["sub_agent"], call["sub"], own)
        attributes = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": call["call"],
            "gen_ai.tool.call.id": call_id,
            "gen_ai.tool.call.arguments": call["args"],
            **base,
            "gen_ai.tool.call.result": call["result"],
        }
        if call.get("error"):
            attributes["error.type"] = "tool_error"
        failed = {"status": {"code": 2, "message": "tool error"}} if call.get("error") else {}
        self.end(own, parent, f"execute_tool {call['call']}", started, attributes, **failed)


def harbor(script: dict[str, Any], chats: list[Conversation]) -> dict[str, str]:
    """OTLP JSON: one pretty object with the first half of the traces, and one export batch a line for the rest."""
    batches = []
    for at, chat in enumerate(chats):
        trace = Trace(chat, script["agents"], 1_793_400_000_000_000_000 + at * 7_200_000_000_000)
        trace.run(chat["agent"], chat["steps"], None)
        resource = {"attributes": [{"key": "service.name", "value": {"stringValue": "night-shift"}}]}
        scope = {"scope": {"name": "harbor-agents", "version": "2.4.0"}, "spans": trace.spans}
        batches.append({"resource": resource, "scopeSpans": [scope]})
    half = len(batches) // 2
    first = json.dumps({"resourceSpans": batches[:half]}, ensure_ascii=False, indent=1) + "\n"
    return {"traces-01.json": first, "traces-02.jsonl": jsonl([{"resourceSpans": [b]} for b in batches[half:]])}
