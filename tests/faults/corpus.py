"""Bodies that nobody should send, without end: broken JSON, broken UTF-8, numbers beyond all bounds, nesting,
wrong types, unknown names; each a mutation of a good one. Seeded, so that a failure can be run again."""

import json
import random
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

GOOD: dict[str, Any] = {
    "/v1/completions": {"prompt": "a", "max_tokens": 2, "n": 1, "stop": ["x"], "logprobs": 1, "seed": 1},
    "/v1/chat/completions": {
        "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2, "tools": [], "stream": False,
        "response_format": {"type": "text"}, "logit_bias": {"5": 1}, "stream_options": None},
    "/v1/messages": {"model": None, "max_tokens": 2, "messages": [{"role": "user", "content": "hi"}]},
    "/v1/messages/count_tokens": {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}]},
    "/v1/responses": {"input": [{"role": "user", "content": "hi"}], "max_output_tokens": 2, "store": False},
    "/v1/embeddings": {"input": ["a", "b"], "encoding_format": "float"},
    "/tokenize": {"prompt": "abc"},
    "/detokenize": {"tokens": [1, 2, 3]},
}
VALUES: list[Any] = [
    None, True, False, 0, -1, 1, 2**31, 2**53 + 1, 2**64, -(2**63) - 1, 10**400, 1.5, -0.0, 1e308, 5e-324, "",
    "a", "\x00", "\ud800", "é" * 3, "😊", "<|end|>", "1", [], [[]], [None], {}, {"": None}, {"a": {"b": []}},
    [1] * 50, ["a"] * 20, "x" * 3000, {"type": "function"}, {"role": "user"}, {"type": "json_schema"},
]
LITERALS = [b"NaN", b"Infinity", b"-Infinity", b"1e999", b"-1e999", b"1E400", b"0x10", b"01", b"1.", b".5",
            b"+1", b"tru", b"nul", b"'a'", b"undefined", b'"\\u12"', b'"\\ud800\\u0041"', b'"\t"', b'"\\x"',
            b"9" * 5000, b"-", b'"\xff\xfe"', b'"\xc3\x28"', b'"\xed\xa0\x80"', b'"\xf4\x90\x80\x80"']
BYTES = [b"\x00", b"\xff", b"\xc3", b"\xe2\x82", b"\xf0\x9f", b"{", b"}", b"[", b"]", b'"', b",", b":", b"\\",
         b"\n\n", b"\xef\xbb\xbf", b"//", b"/*", b"\xed\xa0\x80"]


def hostile(seed: int, num: int) -> Iterator[tuple[str, bytes]]:
    """(path, body), `num` of them."""
    dice = random.Random(seed)
    for _ in range(num):
        path = dice.choice(list(GOOD))
        yield path, dice.choice((_wrong_value, _wrong_value, _literal, _bytes, _cut, _deep, _twice))(
            dice, deepcopy(GOOD[path]))


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) below a value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    found = []
    for key, one in items:
        found += [(value, key), *_places(one)]
    return found


def _dump(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")


def _wrong_value(dice: random.Random, body: Any) -> bytes:
    for _ in range(dice.randint(1, 3)):
        container, key = dice.choice(_places(body))
        if dice.random() < 0.2 and isinstance(container, dict):
            key = dice.choice(("", "x", "\x00", "messages", "n", "stream"))
            container[key] = deepcopy(dice.choice(VALUES))
        else:
            container[key] = deepcopy(dice.choice(VALUES))
    return _dump(body)


def _literal(dice: random.Random, body: Any) -> bytes:
    container, key = dice.choice(_places(body))
    container[key] = "@@"
    return _dump(body).replace(b'"@@"', dice.choice(LITERALS))


def _bytes(dice: random.Random, body: Any) -> bytes:
    text = bytearray(_dump(body))
    for _ in range(dice.randint(1, 4)):
        place = dice.randrange(len(text) + 1)
        text[place:place + dice.randint(0, 2)] = dice.choice(BYTES)
    return bytes(text)


def _cut(dice: random.Random, body: Any) -> bytes:
    text = _dump(body)
    return text[:dice.randrange(len(text))] + (b"" if dice.random() < 0.5 else dice.choice(BYTES))


def _deep(dice: random.Random, body: Any) -> bytes:
    depth = dice.choice((10, 127, 128, 129, 1000, 100_000))
    opening, closing = dice.choice(((b"[", b"]"), (b'{"a":', b"}")))
    container, key = dice.choice(_places(body))
    container[key] = "@@"
    return _dump(body).replace(b'"@@"', opening * depth + b"1" + closing * dice.choice((depth, 0)))


def _twice(dice: random.Random, body: Any) -> bytes:
    """A name that comes twice, or nothing of the kind that is expected at all."""
    text = _dump(body)
    return dice.choice((text[:-1] + b"," + text[1:], text + text, b"", b"null", b"[]", b'"a"', b"1",
                        dice.randbytes(dice.randint(1, 200))))
