"""Ridgeline: LLM inference that can say what every number should have been. Names below load on first use."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ridgeline.engine.llm import LLM, AsyncLLM
    from ridgeline.engine.outputs import CompletionOutput, Logprob, RequestOutput
    from ridgeline.spec.sampling import SamplingParams

_HOMES = {
    "LLM": "ridgeline.engine.llm",
    "AsyncLLM": "ridgeline.engine.llm",
    "CompletionOutput": "ridgeline.engine.outputs",
    "Logprob": "ridgeline.engine.outputs",
    "RequestOutput": "ridgeline.engine.outputs",
    "SamplingParams": "ridgeline.spec.sampling",
}
__all__ = ["LLM", "AsyncLLM", "CompletionOutput", "Logprob", "RequestOutput", "SamplingParams"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'ridgeline' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
