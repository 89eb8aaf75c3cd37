"""Pipes to and from a command: output drained and capped here on the host, so that a flood fills no memory.

It still costs the host's loop the reading. Called by sandbox.py; everything runs in callbacks of the event loop.
"""

import asyncio
import os
from typing import TypeVar

CHUNK = 64 * 1024
PIPE_MAX = 1024 * 1024
"""The most that a pipe can hold (/proc/sys/fs/pipe-max-size): what may still be in it when its writer has ended."""
IDLE_S = 0.05
"""Pause between two reads from children that a finished command left in the background."""


class Output:
    """The reading end of one pipe. Keeps the first `cap` bytes, counts the rest."""

    def __init__(self, cap: int) -> None:
        self.kept = bytearray()
        self.dropped = 0
        self._cap = cap
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._read, self.write_end = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._read, False)
        self._loop.add_reader(self._read, self._drain)

    @property
    def open(self) -> bool:
        """Does anybody still hold the other end, as far as we know?"""
        return self._read >= 0

    def close_command_end(self) -> None:
        """Close our copy of the command's end."""
        if self.write_end >= 0:
            os.close(self.write_end)
            self.write_end = -1

    def finish(self) -> None:
        """The command has ended: take what is left in the pipe, then keep it flowing for its background children.

        They would die of SIGPIPE if we closed it; what they write is read slowly and thrown away.
        """
        before = len(self.kept) + self.dropped
        while self.open and len(self.kept) + self.dropped - before < PIPE_MAX and self._drain():
            pass
        if self.open:
            self._loop.remove_reader(self._read)
            self._loop.add_reader(self._read, self._trickle)

    def close(self) -> None:
        """Close both ends."""
        self.close_command_end()
        if self._timer is not None:
            self._timer.cancel()
        if self._read >= 0:
            self._loop.remove_reader(self._read)
            os.close(self._read)
            self._read = -1

    def _drain(self) -> bool:
        """Read once; False when there was nothing (more) to read."""
        try:
            data = os.read(self._read, CHUNK)
        except BlockingIOError:
            return False
        if not data:
            self.close()
            return False
        room = self._cap - len(self.kept)
        self.kept += data[:room]
        self.dropped += max(0, len(data) - room)
        return True

    def _trickle(self) -> None:
        try:
            data = os.read(self._read, CHUNK)
        except BlockingIOError:
            return
        if not data:
            self.close()
            return
        self._loop.remove_reader(self._read)
        self._timer = self._loop.call_later(IDLE_S, self._listen_again)

    def _listen_again(self) -> None:
        self._timer = None
        self._loop.add_reader(self._read, self._trickle)


class Input:
    """The writing end of a command's standard input: `data`, then the end."""

    def __init__(self, data: bytes) -> None:
        self._left = memoryview(data)
        self._loop = asyncio.get_running_loop()
        self.read_end, self._write = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._write, False)
        self._loop.add_writer(self._write, self._push)

    def close_command_end(self) -> None:
        """Close our copy of the command's end."""
        if self.read_end >= 0:
            os.close(self.read_end)
            self.read_end = -1

    def close(self) -> None:
        """Close both ends."""
        self.close_command_end()
        if self._write >= 0:
            self._loop.remove_writer(self._write)
            os.close(self._write)
            self._write = -1

    def _push(self) -> None:
        try:
            self._left = self._left[os.write(self._write, self._left[:CHUNK]) :]
        except BlockingIOError:
            return
        except BrokenPipeError:  # the command does not want it, or has ended
            self.close()
            return
        if not self._left:
            self.close()


_Stream = TypeVar("_Stream", Output, Input)


class Pipes:
    """All pipes of one command. `merge` gives both outputs one pipe, so that they keep their order."""

    def __init__(self, cap: int, stdin: bytes, merge: bool) -> None:
        self._all: list[Output | Input] = []
        try:
            self.out = self._keep(Output(cap))
            self.err = self.out if merge else self._keep(Output(cap))
            feed = self._keep(Input(stdin)) if stdin else None
        except OSError:
            self.close()
            raise
        self.command_ends = [*([feed.read_end] if feed else []), self.out.write_end, self.err.write_end]
        """What the command gets: [standard input,] output, errors."""

    def started(self) -> None:
        """The command has its ends: close our copies."""
        for stream in self._all:
            stream.close_command_end()

    def finish(self) -> set[Output]:
        """The command has ended: take the rest. Gives back the outputs that its background children still hold."""
        for stream in self._all:
            if isinstance(stream, Output):
                stream.finish()
            else:
                stream.close()
        return {stream for stream in self._all if isinstance(stream, Output) and stream.open}

    def close(self) -> None:
        """Close everything."""
        for stream in self._all:
            stream.close()

    def _keep(self, stream: _Stream) -> _Stream:
        self._all.append(stream)
        return stream
