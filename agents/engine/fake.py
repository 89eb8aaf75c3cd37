"""An engine that says what its script says, for tests in which timing must be controlled. No torch, no model.

`base.Engine` with `on_chunk`, as `engine.EmbeddedEngine` has it. A request's reply is one token per step; between the
first step and the second it waits until `go` is set.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence

from agents.engine.base import Alternative, Chunk, EngineMetrics, GenerateRequest, GenerateResult
from agents.engine.reply import ReplyText
from agents.engine.tokenizer import ChatTokenizer
from schemas.errors import ContextFull


class FakeEngine:
    """Replies with the scripts in turn, the last one for ever. An exception in the script is raised.

    `requests`: what was asked. `running`: replies being made. `cancelled` and `released` count conversations. Use it
    from one event loop only.
    """

    def __init__(
        self,
        tokenizer: ChatTokenizer,
        script: Sequence[str | Exception] = ("hello",),
        *,
        context: int = 1024,
        max_batch: int = 2,
    ) -> None:
        self.model, self.version = "fake", "fake@1"
        self.tokenizer, self.context, self.max_batch = tokenizer, context, max_batch
        self.script = list(script)
        self.go = asyncio.Event()
        self.go.set()
        self.requests: list[GenerateRequest] = []
        self.running = self.sampled = 0
        self.cancelled: list[str] = []
        self.released: Counter[str] = Counter()

    async def generate(
        self, request: GenerateRequest, on_chunk: Callable[[Chunk], None] | None = None
    ) -> GenerateResult:
        """The next reply of the script."""
        self.requests.append(request)
        said = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        prompt = request.prompt or tuple(self.tokenizer.chat_prefix(request.messages, first=True, closed=True))
        if len(prompt) >= self.context:
            raise ContextFull(f"the prompt has {len(prompt)} tokens, the context {self.context}")
        if isinstance(said, Exception):
            raise said
        self.running += 1
        try:
            return await self._reply(request, prompt, said, on_chunk)
        except asyncio.CancelledError:
            self.cancelled.append(request.conversation)
            raise
        finally:
            self.running -= 1

    async def _reply(
        self, request: GenerateRequest, prompt: tuple[int, ...], said: str, on_chunk: Callable[[Chunk], None] | None
    ) -> GenerateResult:
        text = ReplyText(self.tokenizer.decode, request.sampling.stop)
        planned, ids = [*self.tokenizer.encode(said), self.tokenizer.eos_id], []
        top = (Alternative(self.tokenizer.eos_id, -3.0),) * min(1, request.sampling.top_logprobs)
        for token in planned[: request.sampling.max_tokens]:
            ids.append(token)
            self.sampled += 1
            text.feed(token)
            last = text.stopped or len(ids) == min(len(planned), request.sampling.max_tokens)
            if last:
                text.end()
            if on_chunk is not None:
                on_chunk(Chunk(text.fresh(last=last), (token,), (-0.5,), (top,)))
            if last:
                break
            await asyncio.sleep(0)
            await self.go.wait()
        whole = text.stopped or ids[-1] == self.tokenizer.eos_id
        return GenerateResult(
            text=text.text,
            finish_reason="stop" if whole else "length",
            prompt_ids=prompt,
            output_ids=tuple(ids),
            logprobs=(-0.5,) * len(ids),
            policy_version=self.version,
            versions=((self.version, len(ids)),),
            raw_logprobs=(-0.75,) * len(ids) if request.sampling.raw_logprobs else None,
            top=(top,) * len(ids) if request.sampling.top_logprobs else None,
        )

    def release(self, conversation: str) -> None:
        """Count it."""
        self.released[conversation] += 1

    def metrics(self) -> EngineMetrics:
        """Requests, tokens and what runs; the rest is 0."""
        counts = dict.fromkeys(EngineMetrics.__dataclass_fields__, 0)
        counts |= {"requests": len(self.requests), "sampled": self.sampled, "running": self.running}
        return EngineMetrics(**counts)

    async def close(self) -> None:
        """Nothing to free."""
