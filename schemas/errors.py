"""One vocabulary of failures, named by the boundary they crossed.

    TrajmillError
    ├── ConfigError        the configuration or the command line asks for something impossible
    ├── InputError         a partner's log, a task file or a checkpoint is not what it should be
    ├── CannotCompile      C code of ours cannot be compiled here; the message names the cause
    ├── EngineError        the inference engine or the server behind it
    │   ├── EngineUnavailable   no answer after all retries (connection, 429, 5xx, timeout)
    │   ├── EngineRefused       the server answered that the request is wrong; a retry cannot help
    │   │   └── ContextFull         the conversation and its reply do not fit the model's context
    │   └── GenerationPaused    the request was paused; its state goes on elsewhere
    ├── SandboxError       the sandbox, not the command in it
    │   ├── SandboxUnsupported  this host cannot make one; the message names the cause
    │   ├── SandboxRefused      no room for one now; `cause` says what is short
    │   └── SandboxDied         it was alive and is gone, or its holder closed it
    │       ├── SandboxCrashed      what ran inside ended it: the agent's doing, a failed episode
    │       ├── SandboxExpired      it lived for its whole `lifetime_s`
    │       └── SandboxLost         the infrastructure lost it (zygote, node, network): never the agent's doing
    ├── StageError         a pipeline stage cannot go on
    └── MergeError         checkpoints that do not fit together

A command that exits with 1, a reply that does not parse and a task that is not solved are results, not errors.
"""


class TrajmillError(Exception):
    """Base of every error that the product raises on purpose."""


class ConfigError(TrajmillError, ValueError):
    """The configuration or the command line asks for something impossible."""


class InputError(TrajmillError, ValueError):
    """A file from outside is not what it should be. The message names file, place and field."""


class CannotCompile(TrajmillError, OSError):
    """C code of ours cannot be compiled here. The message names the cause."""


class EngineError(TrajmillError):
    """The inference engine, or the server behind it, failed."""


class EngineUnavailable(EngineError, ConnectionError):
    """No answer after all retries."""


class EngineRefused(EngineError):
    """The server answered that the request is wrong."""


class ContextFull(EngineRefused):
    """The conversation and its reply do not fit the model's context."""


class GenerationPaused(EngineError):
    """The request was paused: its state is with whoever paused it, and goes on where that is continued."""


class SandboxError(TrajmillError):
    """The sandbox failed, not the command in it."""


class SandboxUnsupported(SandboxError, OSError):
    """This host cannot make a sandbox. The message names the cause."""


class SandboxRefused(SandboxError):
    """No room for a sandbox now. `cause` is one word for metrics, the message says what was measured."""

    def __init__(self, cause: str, message: str) -> None:
        super().__init__(cause, message)
        self.cause = cause

    def __str__(self) -> str:
        return str(self.args[1])


class SandboxDied(SandboxError):
    """The sandbox was alive and is gone. Raised as itself when its holder closed it."""


class SandboxCrashed(SandboxDied):
    """What ran inside the sandbox ended it. An agent's doing: the episode has failed."""


class SandboxExpired(SandboxDied):
    """The sandbox lived for its whole `lifetime_s`."""


class SandboxLost(SandboxDied):
    """The infrastructure lost the sandbox. Never the agent's doing: the episode is played again elsewhere."""


class StageError(TrajmillError):
    """A pipeline stage cannot go on."""


class MergeError(TrajmillError, ValueError):
    """Checkpoints that do not fit together."""
