"""The table of described families: model_type -> reader of its config."""

from collections.abc import Callable

from ridgeline.base.table import LazyTable
from ridgeline.models.read import ConfigReader
from ridgeline.spec.model import ModelSpec

# model_type -> the module that has its reader; a plan imports the one it needs
DESCRIBED: LazyTable[Callable[[ConfigReader], ModelSpec]] = LazyTable("described model family", {
    name: f"ridgeline.models.described.{place}" for name, place in {
        "falcon": "dense:falcon", "olmo2": "dense:OLMO2.spec", "minimax_m2": "dense:MINIMAX_M2.spec",
        "qwen3_next": "hybrid:qwen_next", "qwen3_5_moe_text": "hybrid:qwen_next",
        "nemotron_h": "hybrid:nemotron_h", "kimi_linear": "hybrid:KIMI_LINEAR.spec",
        "gemma4_text": "gemma4:WHOLE_GEMMA4.spec",
        "minimax": "hybrid:minimax", "minimax_text_01": "hybrid:minimax",
        "deepseek_v32": "sparse:DEEPSEEK_V32.spec",
        "glm_moe_dsa": "sparse:GLM5.spec", "kimi_k2": "sparse:KIMI_K2.spec"
    }.items()})
