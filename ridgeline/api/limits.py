"""What a body may be, checked on its bytes before anything is parsed. Cheap: a few passes in C over the body.
"""

from dataclasses import dataclass

import numpy as np

from ridgeline.base.errors import ConfigError, RequestError

_NOT_STRUCTURE = bytes(byte for byte in range(256) if byte not in b'"[]{}')
_STEP = np.zeros(256, np.int8)
_STEP[list(b"[{")], _STEP[list(b"]}")] = 1, -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds on one request. body_bytes: the whole body. depth: nested arrays and objects. choices: prompts
    times n.

    body_s: seconds for the body to arrive. stops and stop_chars bound stop strings; bias bounds logit_bias
    entries.
    """

    body_bytes: int = 8 * 2**20
    body_s: float = 30.0
    depth: int = 128
    choices: int = 1024
    n: int = 128
    logprobs: int = 20
    stops: int = 16
    stop_chars: int = 1024
    stop_token_ids: int = 128
    bias: int = 1024
    temperature: float = 100.0


LIMITS = Limits()


def limits_of(*, body_bytes: int | None, depth: int | None, choices: int | None) -> Limits:
    """An operator's; None: as it is. Raises ConfigError."""
    if depth is not None and depth > LIMITS.depth:
        raise ConfigError(
            f"--max-nesting {depth}: at most {LIMITS.depth}, as what reads schemas goes no deeper"
        )
    return Limits(body_bytes=body_bytes or LIMITS.body_bytes, depth=depth or LIMITS.depth,
                  choices=choices or LIMITS.choices)


def nesting(body: bytes) -> int:
    """How deep arrays and objects of a JSON text nest; brackets inside strings do not count."""
    if b"\\" in body:  # pairs of backslashes first: what is left before a quote then escapes it
        body = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    skeleton = np.frombuffer(body.translate(None, _NOT_STRUCTURE), np.uint8)
    if not len(skeleton):
        return 0
    outside = np.bitwise_xor.accumulate(skeleton == ord('"')) ^ True
    return int(np.cumsum(_STEP[skeleton] * outside, dtype=np.int32).max())


def check_depth(body: bytes, limits: Limits = LIMITS) -> None:
    """Refuse a body that nests deeper than the limit."""
    if body.count(b"[") + body.count(b"{") > limits.depth and nesting(body) > limits.depth:
        raise RequestError(
            f"the body nests deeper than {limits.depth} arrays and objects",
            param="body",
            code="nesting_too_deep",
        )


def too_large(limits: Limits = LIMITS) -> RequestError:
    """The refusal of a body that is too long."""
    return RequestError(f"the body is longer than {limits.body_bytes} bytes", param="body", status=413)
