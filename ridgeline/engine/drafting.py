"""From `speculate` to what drafts: the text's own n-grams, or a second model beside the first."""

from collections.abc import Mapping
from dataclasses import replace
from typing import cast

import torch

from ridgeline.base.clock import Clock
from ridgeline.base.config import EngineConfig, cache_dir
from ridgeline.base.errors import ConfigError
from ridgeline.base.units import format_bytes
from ridgeline.engine.numerics import choose_numerics
from ridgeline.engine.sizes import block_tokens
from ridgeline.engine.startup import Startup
from ridgeline.models.resolve import open_model
from ridgeline.nn.build import build_model
from ridgeline.nn.linear import Weight
from ridgeline.nn.load import load_weights
from ridgeline.runner.speculate.draft import DraftModel
from ridgeline.runner.speculate.ngram import Ngram
from ridgeline.runner.speculate.speculator import Drafter, Speculator
from ridgeline.runner.speculate.texts import Texts
from ridgeline.schedule.executor import Capacity
from ridgeline.spec.cache import State, plan_layout

CPU = torch.device("cpu")


def draft_model(config: EngineConfig) -> str | None:
    """The MODEL of "draft:MODEL"; None for "ngram". ConfigError for anything else."""
    kind, _, model = (config.speculate or "").partition(":")
    if config.speculate_max < 1:
        raise ConfigError(f"speculate_max is {config.speculate_max}: set it to at least 1")
    if kind == "ngram" and not model:
        return None
    if kind == "draft" and model:
        return model
    raise ConfigError(f"speculate {config.speculate!r} is not known: use ngram, or draft:MODEL with a "
                      "smaller model of the same vocabulary")


def check_speculation(config: EngineConfig, *, on_gpu: bool) -> None:
    """ConfigError, before anything loads, where drafts cannot be verified."""
    if config.speculate is None:
        return
    if draft_model(config) is not None and on_gpu:
        raise ConfigError("speculate by a draft model is not there yet on a GPU: use ngram, or device cpu")
    if not config.cache:
        raise ConfigError("speculate verifies drafts from the cache: leave out one of speculate and no-cache")


def build_drafter(config: EngineConfig, capacity: Capacity, clock: Clock, startup: Startup, *,
                  on_gpu: bool) -> Drafter | None:
    """None without speculation. capacity: of the target. ConfigError for states on a GPU: there drafts are
    tested as a chunk of a prompt is computed, behind which a state does not go back."""
    if config.speculate is None:
        return None
    if on_gpu and any(group.kind is State for group in capacity.layout.groups):
        raise ConfigError("speculate is not there yet for models with recurrent states on a GPU: leave it "
                          "out, or use device cpu")
    texts, name = Texts(), draft_model(config)
    if name is None:
        startup.choose("speculate", "ngram", f"as given, at most {config.speculate_max} drafts of a sequence")
        return Drafter(texts, Ngram(texts, config.speculate_max), clock, ordered=not on_gpu)
    return Drafter(texts, _draft_model(config, name, capacity, clock, texts, startup), clock)


def _draft_model(config: EngineConfig, name: str, capacity: Capacity, clock: Clock, texts: Texts,
                 startup: Startup) -> Speculator:
    checkpoint = open_model(name, revision=None, load_format=config.load_format, overrides=None)
    spec = checkpoint.spec
    if spec.vocab_size != capacity.vocab_size:
        raise ConfigError(f"the draft model {checkpoint.name} has a vocabulary of {spec.vocab_size} tokens "
                          f"and the model one of {capacity.vocab_size}: they must be the same")
    numerics = choose_numerics(config, checkpoint, Startup(clock))
    weights = load_weights(checkpoint, numerics.policy, device=CPU, progress=config.progress,
                           cache_dir=cache_dir() / "repacked", seed=config.seed)
    model = build_model(spec, cast(Mapping[str, Weight], weights), numerics.activations)
    layout = plan_layout(spec.cache(numerics.cache.itemsize), block_tokens=block_tokens(config, on_gpu=False))
    longest = min(capacity.max_model_len, spec.max_position)
    texts_held = (capacity.num_pages - 1) / capacity.layout.pages_for(capacity.max_model_len)
    num_pages = 1 + max(layout.pages_for(1), int(texts_held * layout.pages_for(longest)))
    startup.choose("speculate", f"draft:{checkpoint.name}",
                   f"as given, at most {config.speculate_max} drafts of a sequence; its own KV cache takes "
                   f"{format_bytes(num_pages * layout.page_bytes)}, for as many tokens as the model's")
    own = replace(capacity, layout=layout, num_pages=num_pages, max_model_len=longest)
    return DraftModel(model, own, cache_dtype=numerics.cache, device=CPU, texts=texts,
                      most=config.speculate_max)
