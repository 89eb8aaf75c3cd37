"""A tokenizer whose ids are bytes, for tests of rows and shards; control tokens lie above 255."""

from collections.abc import Sequence

from agents.engine.base import ChatTurn

START, END = 256, 257


class ByteTokenizer:
    """Implements `agents.engine.base.Tokenizer`."""

    vocab_size = 258
    eos_id = END

    def encode(self, text: str) -> list[int]:
        return list(text.encode("utf-8", "surrogatepass"))

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(i for i in ids if i < START).decode("utf-8", "replace")

    def chat_prefix(self, messages: Sequence[ChatTurn], *, first: bool, closed: bool) -> list[int]:
        ids = [] if first else self.encode("\n") if closed else [END, *self.encode("\n")]
        for message in messages:
            ids += [START, *self.encode(f"{message.role}\n{message.content}"), END, *self.encode("\n")]
        return [*ids, START, *self.encode("assistant\n")]
