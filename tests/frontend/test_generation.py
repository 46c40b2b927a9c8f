"""From news to text, against a slow twin that looks at the whole output at once."""

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.frontend.generation import Choice, Delta, Generation
from ridgeline.frontend.protocol import Logprobs, News
from ridgeline.frontend.text import TextLayer
from ridgeline.frontend.tokenizer import Tokenizer
from ridgeline.spec.sampling import SamplingParams

END = 257  # <|end|> of the byte-level test vocabulary


def news_of(tokens: list[int], sizes: list[int], finish: str, *, logprobs: bool = False) -> list[News]:
    """The tokens as the engine would send them: one or more at a time, the last with the finish."""
    out, start = [], 0
    for size in [*sizes, len(tokens)]:
        part = tokens[start : start + max(1, size)]
        start += len(part)
        last = start >= len(tokens)
        entries = (
            [Logprobs(token_ids=[t, t], logprobs=[-1.0, -1.0], rank=0) for t in part] if logprobs else []
        )
        out.append(News(id="r", new_tokens=part, logprobs=entries, finish=finish if last else None))
        if last:
            return out
    raise AssertionError


def slow(
    tokenizer: Tokenizer, params: SamplingParams, tokens: list[int], finish: str
) -> tuple[str, int, str]:
    """(text, tokens that count, finish): grow the text by one token and look at all of it again."""
    shown = tokens[:-1] if finish == "stop" and not params.include_stop_str_in_output else tokens
    kept = [t for t in shown if not (params.skip_special_tokens and t in tokenizer.special_ids)]
    every = b"".join(map(tokenizer.token_bytes, kept))
    whole = every.decode("utf-8", "replace").removesuffix(_cut_tail(every))
    before = 0
    for count in range(1, len(tokens) + 2):
        over = count > len(tokens)
        part = [t for t in shown[:count] if not (params.skip_special_tokens and t in tokenizer.special_ids)]
        raw = b"".join(map(tokenizer.token_bytes, part))
        text = whole if over else whole[: len(raw.decode("utf-8", "replace").removesuffix(_cut_tail(raw)))]
        if min(count, len(tokens)) > params.min_tokens:
            for end in range(before + 1, len(text) + 1):
                hits = [stop for stop in params.stop if text[:end].endswith(stop)]
                if hits:
                    stop = max(hits, key=len)
                    cut = end if params.include_stop_str_in_output else end - len(stop)
                    return text[:cut], min(count, len(tokens)), "stop"
        before = len(text)
    return whole, len(tokens), finish


def _cut_tail(raw: bytes) -> str:
    """What decoding at once shows for bytes that may still become a character."""
    for size in range(1, min(3, len(raw)) + 1):
        try:
            raw[-size:].decode()
        except UnicodeDecodeError as error:
            if error.reason == "unexpected end of data" and error.start == 0:
                return raw[-size:].decode("utf-8", "replace")
    return ""


def run(tokenizer: Tokenizer | None, params: SamplingParams, news: list[News]) -> tuple[Choice, list[Delta]]:
    choice = Choice(tokenizer, params)
    deltas = []
    for one in news:
        deltas.append(choice.feed(one))
        if choice.finish is not None:
            break
    return choice, deltas


@settings(max_examples=600, deadline=None)
@given(
    tokens=st.lists(
        st.sampled_from([64, 65, 66, 256, 257, 195, 128, 127, 222, 32, 67]), min_size=1, max_size=16
    ),
    sizes=st.lists(st.integers(1, 4), max_size=8),
    finish=st.sampled_from(["stop", "length"]),
    stops=st.lists(st.sampled_from(["a", "ab", "bc", "b", "abab", "ca", "\ufffd", "<|"]), max_size=2),
    min_tokens=st.integers(0, 4),
    include=st.booleans(),
    skip=st.booleans(),
)
def test_equals_the_slow_twin(
    byte_level: Tokenizer,
    tokens: list[int],
    sizes: list[int],
    finish: str,
    stops: list[str],
    min_tokens: int,
    include: bool,
    skip: bool,
) -> None:
    """Text, count, reason and the abort for the engine, however the tokens arrive."""
    params = SamplingParams(
        stop=tuple(stops), min_tokens=min_tokens, include_stop_str_in_output=include, skip_special_tokens=skip
    )
    choice, deltas = run(byte_level, params, news_of(tokens, sizes, finish))
    text, count, reason = slow(byte_level, params, tokens, finish)
    assert (choice.text, len(choice.token_ids), choice.finish) == (text, count, reason)
    assert "".join(delta.text for delta in deltas) == text
    assert [t for delta in deltas for t in delta.token_ids] == tokens[:count] == choice.token_ids
    assert [delta.finish for delta in deltas if delta.finish] == [reason]
    sent = sum(len(one.new_tokens) for one in news_of(tokens, sizes, finish)[: len(deltas)])
    keeps = [delta.abort_keep for delta in deltas if delta.abort_keep is not None]
    assert keeps == ([count] if sent < len(tokens) else [])


@settings(max_examples=300, deadline=None)
@given(
    text=st.text(st.sampled_from("ab<é😊\u200d\u0301"), max_size=12),
    sizes=st.lists(st.integers(1, 3), max_size=6),
    stops=st.lists(st.sampled_from(["b", "ab", "😊", "é"]), max_size=2),
    finish=st.sampled_from(["stop", "length"]),
)
def test_logprob_bytes_are_the_text(
    byte_level: Tokenizer, text: str, sizes: list[int], stops: list[str], finish: str
) -> None:
    """C-02: the bytes of the entries joined are the bytes of the text, at every moment of the stream.

    Only a stop string that begins inside a token leaves the rest of that token over.
    """
    tokens = [*byte_level.encode_guarded(text, "\ufdd0"), END]
    params = SamplingParams(stop=tuple(stops), logprobs=1, min_tokens=0)
    choice, deltas = run(byte_level, params, news_of(tokens, sizes, finish, logprobs=True))
    raw = b"".join(entry.taken.raw for delta in deltas for entry in delta.entries)
    assert raw.startswith(choice.text.encode()) and (raw == choice.text.encode() or choice.stop_reason == "b")
    assert len(choice.logprobs) == len(choice.token_ids)
    seen, shown = b"", ""
    for delta in deltas:
        seen += b"".join(entry.taken.raw for entry in delta.entries)
        shown += delta.text
        assert seen.startswith(shown.encode())


def test_offsets_count_characters(byte_level: Tokenizer) -> None:
    """text_offset: the four quarters of an emoji begin where the emoji does."""
    tokens = byte_level.encode("é😊a")
    choice, deltas = run(byte_level, SamplingParams(logprobs=0), news_of(tokens, [], "length", logprobs=True))
    assert [entry.offset for delta in deltas for entry in delta.entries] == [0, 0, 1, 1, 1, 1, 2]
    assert choice.cumulative_logprob == -7.0


def test_stop_across_tokens_and_in_the_first(default_text: TextLayer) -> None:
    """C-03: the text up to the stop string, nothing of it before or after."""
    tokenizer = default_text.need_tokenizer()
    whole = "The quick brown fox jumps"
    tokens = tokenizer.encode(whole)
    choice, deltas = run(tokenizer, SamplingParams(stop=("ck brown f",)), news_of(tokens, [1] * 9, "length"))
    assert choice.text == "The qui" and choice.finish == "stop" and choice.stop_reason == "ck brown f"
    assert deltas[-1].abort_keep == len(choice.token_ids) == 4
    choice, deltas = run(tokenizer, SamplingParams(stop=("The",)), news_of(tokens, [1] * 9, "length"))
    assert choice.text == "" and all(delta.text == "" for delta in deltas)


def test_news_after_the_end_is_only_the_account(byte_level: Tokenizer) -> None:
    """The engine runs one step ahead: tokens that cross the abort do not count."""
    choice = Choice(byte_level, SamplingParams(stop=("b",)))
    assert choice.feed(News(id="r", new_tokens=[64, 65])).abort_keep == 2
    assert not choice.engine_done
    assert choice.feed(News(id="r", new_tokens=[66], finish="stop", num_output=2)) == Delta()
    assert choice.engine_done and choice.text == "a" and len(choice.token_ids) == 2


def test_stop_token_is_not_text(byte_level: Tokenizer) -> None:
    """A stop token ends the text and counts; include_stop_str_in_output shows it."""
    news = [News(id="r", new_tokens=[64, 65], finish="stop", stop_token=65)]
    choice, _ = run(byte_level, SamplingParams(stop_token_ids=(65,)), news)
    assert (len(choice.text), len(choice.token_ids), choice.stop_reason) == (1, 2, 65)
    shown, _ = run(byte_level, SamplingParams(include_stop_str_in_output=True), news)
    assert len(shown.text) == 2 and shown.stop_reason is None  # an end token of the model's own


def test_ids_only(byte_level: Tokenizer) -> None:
    """Without a tokenizer, or with detokenize off, tokens pass and there is no text."""
    for tokenizer in (None, byte_level):
        choice, deltas = run(
            tokenizer,
            SamplingParams(detokenize=False, logprobs=0),
            news_of([64, 65], [1], "length", logprobs=True),
        )
        assert choice.text == "" and choice.token_ids == [64, 65] and len(choice.logprobs) == 2
        assert sum(len(delta.entries) for delta in deltas) == 2


def test_choices_are_apart(byte_level: Tokenizer) -> None:
    """n choices of one request: each has its own text and end; the prompt is counted once."""
    generation = Generation(byte_level, SamplingParams(n=2))
    first = News(id="r", choice=0, new_tokens=[64], num_prompt=5, num_cached=3)
    generation.feed(first)
    generation.feed(
        msgspec.structs.replace(first, choice=1, new_tokens=[65, 66], finish="length", num_cached=4)
    )
    assert not generation.finished and generation.num_output == 3
    generation.feed(msgspec.structs.replace(first, new_tokens=[], finish="abort"))
    assert generation.finished and generation.engine_done
    assert [choice.finish for choice in generation.choices] == ["abort", "length"]
    assert (generation.num_prompt, generation.num_cached) == (5, 3)


def test_error_is_told(byte_level: Tokenizer) -> None:
    choice, deltas = run(byte_level, SamplingParams(), [News(id="r", finish="error", error="broke")])
    assert choice.finish == "error" and deltas[0].error == "broke"
