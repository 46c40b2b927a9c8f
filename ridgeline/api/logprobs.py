"""Log-probabilities in the three forms clients read: chat, legacy completion and vLLM's prompt_logprobs.

Every number is finite: what the model rules out has FLOOR.
"""

from collections.abc import Iterable, Sequence

from ridgeline.api.answers import (
    ChatLogprob,
    ChatLogprobs,
    CompletionLogprobs,
    PromptLogprob,
    PromptLogprobs,
    TopLogprob,
)
from ridgeline.frontend.generation import LogprobEntry, TokenLogprob, describe
from ridgeline.frontend.protocol import Logprobs
from ridgeline.frontend.tokenizer import Tokenizer

FLOOR = -9999.0


def chat_logprobs(entries: Sequence[LogprobEntry]) -> ChatLogprobs:
    """OpenAI's form for chats."""
    return ChatLogprobs(
        content=[
            ChatLogprob(
                token=_text(entry.taken),
                logprob=_finite(entry.taken.logprob),
                bytes=list(entry.taken.raw),
                top_logprobs=[
                    TopLogprob(token=_text(top), logprob=_finite(top.logprob), bytes=list(top.raw))
                    for top in entry.top
                ],
            )
            for entry in entries
        ]
    )


def completion_logprobs(
    prompt: Sequence[LogprobEntry | None],
    entries: Sequence[LogprobEntry],
    first: TokenLogprob | None,
    offset: int,
) -> CompletionLogprobs:
    """OpenAI's form for completions: an echoed prompt's entries, then the output's.

    first: the prompt's first token, which nothing predicts. offset: characters of the echoed prompt.
    """
    tokens: list[str] = []
    values: list[float | None] = []
    tops: list[dict[str, float] | None] = []
    offsets: list[int] = []
    if first is not None:
        tokens, values, tops, offsets = [_text(first)], [None], [None], [0]
    for base, entry in [*((0, e) for e in prompt if e is not None), *((offset, e) for e in entries)]:
        tokens.append(_text(entry.taken))
        values.append(_finite(entry.taken.logprob))
        tops.append({_text(top): _finite(top.logprob) for top in (*entry.top, entry.taken)})
        offsets.append(base + entry.offset)
    return CompletionLogprobs(tokens=tokens, token_logprobs=values, top_logprobs=tops, text_offset=offsets)


def prompt_entries(
    token_ids: Sequence[int], found: Iterable[tuple[int, Logprobs]], tokenizer: Tokenizer | None
) -> list[LogprobEntry | None]:
    """An entry for each prompt token; None for the first, and for any that the engine did not report."""
    entries: list[LogprobEntry | None] = [None] * len(token_ids)
    offsets = _char_offsets(token_ids, tokenizer)
    for position, logprobs in found:
        entries[position] = describe(logprobs, tokenizer, offset=offsets[position])
    return entries


def first_token(token_id: int, tokenizer: Tokenizer | None) -> TokenLogprob:
    """The prompt's first token, without a probability."""
    if tokenizer is None:
        return TokenLogprob(token_id=token_id, logprob=0.0)
    text, raw = tokenizer.token_text(token_id), tokenizer.token_bytes(token_id)
    return TokenLogprob(token_id=token_id, logprob=0.0, text=text, raw=raw)


def prompt_logprobs(entries: Sequence[LogprobEntry | None]) -> PromptLogprobs:
    """vLLM's form: for each prompt token, token id -> its probability there; the first is null."""
    return [
        None
        if entry is None
        else {
            str(one.token_id): PromptLogprob(
                logprob=_finite(one.logprob),
                rank=None if one.rank is None else one.rank + 1,
                decoded_token=one.text,
            )
            for one in (*entry.top, entry.taken)
        }
        for entry in entries
    ]


def _char_offsets(token_ids: Sequence[int], tokenizer: Tokenizer | None) -> list[int]:
    """The character in which each token begins: characters begun before it, less one inside a character."""
    offsets: list[int] = []
    begun = 0
    for token in token_ids:
        raw = tokenizer.token_bytes(token) if tokenizer is not None else b""
        inside = bool(raw) and 0x80 <= raw[0] < 0xC0
        offsets.append(max(0, begun - inside))
        begun += sum(not 0x80 <= byte < 0xC0 for byte in raw)
    return offsets


def _text(token: TokenLogprob) -> str:
    """A token without text, for a model without a tokenizer, is shown by its id."""
    return token.text if token.text or token.raw else f"token_id:{token.token_id}"


def _finite(value: float) -> float:
    return value if value > FLOOR else FLOOR
