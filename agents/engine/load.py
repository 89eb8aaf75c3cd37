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


def load_embedded(settings: EngineSettings, precision: "Precision | None" = None) -> "EmbeddedEngine":
    """The model in this process. `precision` None: fp16 weights where fbgemm can run them, else fp32."""
    path = files.find(settings.model)
    try:
        import torch

        from agents.engine import weights
        from agents.engine.engine import EmbeddedEngine
        from agents.engine.models.llama import Llama
    except ImportError as error:
        raise ConfigError(f"the embedded engine needs {error.name}; run: pip install 'trajmill[engine]'") from error

    chosen: Precision = precision or ("fp16" if "fbgemm" in torch.backends.quantized.supported_engines else "fp32")
    shape, read = weights.open_checkpoint(path)
    version = f"{_name(settings.model)}@{weights.digest(path)}-{chosen}"
    log.info("loading %s", version)
    return EmbeddedEngine(
        _name(settings.model),
        version,
        Llama(shape, read, chosen),
        load_tokenizer(settings.model),
        max_batch=settings.max_batch,
        context=settings.context,
        threads=settings.threads,
    )


def _name(model: str) -> str:
    # The folder's or file's own name: no path of the machine gets into records.
    return model if model == files.SMOLLM2 else Path(model).resolve().name
