"""What an operator reads at the start: the model, where the bytes go, and a line to try."""

import json
from collections.abc import Mapping
from typing import Any

from ridgeline.base.units import format_bytes
from ridgeline.server.config import ServerConfig
from ridgeline.server.keys import Key
from ridgeline.server.start import Running

_TRY = {"messages": [{"role": "user", "content": "Why is the sky blue?"}], "max_tokens": 64}


def banner(running: Running, url: str, settings: ServerConfig) -> str:
    """Lines for standard output."""
    info, card = running.info, running.api.served.card
    lines = [
        f"Ridgeline {info['version']} serves {card.id}, {info['family']}, {info['num_params']:,} parameters",
        *memory_plan(info),
        _access(settings),
        f"ready in {running.seconds['total']:.1f} s on {url}/v1, documented at {url}/docs, "
        f"watched at {url}/live",
    ]
    if running.api.served.text.template is None:
        body, path = json.dumps({"prompt": [5, 6, 7], "max_tokens": 16}), "completions"
    else:
        body, path = json.dumps(_TRY), "chat/completions"
    key = ' -H "Authorization: Bearer $RIDGELINE_API_KEY"' if settings.api_keys else ""
    lines.append(f"try: curl {url}/v1/{path} -H 'Content-Type: application/json'{key} -d '{body}'")
    return "\n".join(lines)


def _access(settings: ServerConfig) -> str:
    """Who may call, and with what."""
    keys, limits = settings.api_keys, settings.limits
    limited = sum(key != Key(digest=key.digest, name=key.name) for key in keys)
    who = f"{len(keys)} API keys, {limited} with priorities or limits" if keys else "everybody, without a key"
    origins = ", ".join(settings.allowed_origins)
    browsers = f"browsers from {origins}" if origins else "CORS off"
    size = format_bytes(limits.body_bytes)
    return (f"access     {who}; {browsers}; bodies up to {size}, {limits.depth} deep, for "
            f"{limits.choices:,} answers")


def memory_plan(info: Mapping[str, Any]) -> list[str]:
    """Where the engine's bytes go, and the largest request that fits."""
    cache, weights = info["kv_cache_bytes"], info["weights_bytes"]
    return [
        f"weights    {weights:>14,} bytes = {format_bytes(weights)}",
        f"KV cache   {cache:>14,} bytes = {format_bytes(cache)}, {info['num_pages']:,} pages of "
        f"{info['page_bytes']:,} bytes, blocks of {info['block_tokens']} tokens",
        f"requests   up to {info['max_request_tokens']:,} tokens of prompt and output (context "
        f"{info['max_model_len']:,}), {info['max_num_seqs']} at a time, "
        f"{info['max_num_batched_tokens']:,} tokens in a step",
    ]
