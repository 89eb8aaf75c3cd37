"""Makes an engine from settings. Called by the stages that sample; torch is imported only when a model is loaded."""

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from agents.engine import files
from agents.engine.base import Engine
from agents.engine.http import HttpEngine
from agents.engine.tokenizer import load_tokenizer
from schemas.errors import ConfigError
from schemas.recipe import EngineSettings

if TYPE_CHECKING:
    from agents.engine.engine import EmbeddedEngine
    from agents.engine.models.llama import Precision

log = logging.getLogger(__name__)


def load_engine(settings: EngineSettings) -> Engine:
    """The HTTP client when `settings.url` is set, else the model in this process. ConfigError says what is missing."""
    if settings.url is not None:
        return HttpEngine.from_settings(settings)
    return load_embedded(settings)


def load_embedded(settings: EngineSettings) -> "EmbeddedEngine":
    """The model in this process."""
    path = files.find(settings.model)
    try:
        import torch

        from agents.engine import weights
        from agents.engine.engine import EmbeddedEngine
        from agents.engine.models.llama import Llama
    except ImportError as error:
        raise ConfigError(f"the embedded engine needs {error.name}; run: pip install 'trajmill[engine]'") from error

    if settings.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device 'cuda': torch finds no CUDA device")
    precision = _precision(settings, fbgemm="fbgemm" in torch.backends.quantized.supported_engines)
    shape, read = weights.open_checkpoint(path)
    version = f"{_name(settings.model)}@{weights.digest(path)}-{precision}"
    log.info("loading %s", version)
    return EmbeddedEngine(
        _name(settings.model),
        version,
        Llama(shape, read, precision, settings.kv, settings.device),
        load_tokenizer(settings.model),
        max_batch=settings.max_batch,
        context=settings.context,
        threads=1 if settings.device == "cuda" else settings.threads,
        kv_megabytes=settings.kv_megabytes,
    )


def _precision(settings: EngineSettings, *, fbgemm: bool) -> "Precision":
    on_cpu: tuple[Precision, ...] = ("fp16", "fp32", "int8") if fbgemm else ("fp32", "int8")
    on_cuda: tuple[Precision, ...] = ("bf16", "fp32")
    allowed = on_cpu if settings.device == "cpu" else on_cuda
    if settings.precision == "auto":
        return allowed[0]
    if settings.precision not in allowed:
        raise ConfigError(f"precision {settings.precision!r} cannot run on {settings.device!r} here, only {allowed}")
    return settings.precision


def _name(model: str) -> str:
    # The folder's or file's own name: no path of the machine gets into records.
    return model if model == files.SMOLLM2 else Path(model).resolve().name
