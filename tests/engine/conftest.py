"""One loaded model for all engine tests; skipped with a reason where the weights are not installed."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from agents.engine import files
from agents.engine.tokenizer import ChatTokenizer, load_tokenizer
from schemas.errors import ConfigError
from schemas.recipe import EngineSettings


@pytest.fixture(scope="session")
def weights_file() -> Path:
    try:
        return files.find(files.SMOLLM2)
    except ConfigError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def tokenizer(weights_file: Path) -> ChatTokenizer:
    return load_tokenizer(files.SMOLLM2)


@pytest.fixture(scope="session")
def engine(weights_file: Path) -> Iterator:
    from agents.engine.load import load_embedded

    engine = load_embedded(EngineSettings(max_batch=8, context=1024))
    yield engine
    asyncio.run(engine.close())
