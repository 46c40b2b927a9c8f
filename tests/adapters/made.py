"""Adapters as PEFT saves them, made by hand: random pairs for places of a model's spec."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from ridgeline.adapters.load import Adapter, load_adapter
from ridgeline.models.adapter import places, read_adapter
from ridgeline.spec.model import ModelSpec

ALL = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
CONFIG: dict[str, Any] = {
    "peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": "some/model", "bias": "none",
    "fan_in_fan_out": False, "inference_mode": True, "init_lora_weights": True, "lora_dropout": 0.0,
    "use_rslora": False, "use_dora": False, "modules_to_save": None, "rank_pattern": {}, "alpha_pattern": {},
}  # fmt: skip


def adapter_folder(
    folder: Path, spec: ModelSpec, *, seed: int = 0, rank: int = 4, alpha: float = 8.0,
    targets: Sequence[str] = ALL, strength: float = 1.0, **config: Any,
) -> Path:  # fmt: skip
    """A folder with pairs of one rank for the last parts of modules' names. config: fields beside or
    instead."""
    random = np.random.default_rng(seed)
    tensors = {}
    for module, place in places(spec).items():
        if module.rpartition(".")[2] in targets:
            name = f"base_model.model.{module}.lora_"
            tensors[f"{name}A.weight"] = _normal(random, rank, place.columns)
            tensors[f"{name}B.weight"] = _normal(random, place.rows, rank) * np.float32(strength)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    fields = CONFIG | {"r": rank, "lora_alpha": alpha, "target_modules": list(targets)} | config
    (folder / "adapter_config.json").write_text(json.dumps(fields))
    return folder


def loaded(folder: Path, spec: ModelSpec, *, max_rank: int = 64) -> Adapter:
    """The adapter of a folder, for a model in which every place takes one."""
    seats = {place.weight for place in places(spec).values()}
    return load_adapter(read_adapter(folder, spec, max_rank=max_rank), seats)


def _normal(random: np.random.Generator, rows: int, columns: int) -> np.ndarray:
    return (random.standard_normal((rows, columns)) * columns**-0.5).astype(np.float32)
