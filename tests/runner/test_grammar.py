"""Grammars of runner rows: the masks allow exactly what the grammar does, drafts and preemption included."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.base.errors import RequestError
from ridgeline.frontend import structure
from ridgeline.runner.grammar import FORBIDDEN, Grammars
from ridgeline.schedule.plan import Copies, RowStart, StepPlan
from ridgeline.spec.sampling import SamplingParams

PIECES = [b"", b"a", b"b", b"ab", b"ba", b"aa", b"1", b"12", b"\xc3", b"\xa9", "é".encode(), b"2", b"<end>"]
END = 12
VOCAB = 45  # more than the tokenizer knows, and no multiple of 32


class Letters:
    marker_ids = frozenset((END,))

    def token_bytes(self, token: int) -> bytes:
        return PIECES[token] if token < len(PIECES) else b""

    def encode(self, text: str, *, add_special: bool = True) -> list[int]:
        return [PIECES.index(letter.encode()) for letter in text]


def grammars(*, jump_ahead: bool = True) -> Grammars:
    return Grammars(Letters, vocab_size=VOCAB, eos_token_ids=(END,), threads=1, jump_ahead=jump_ahead)


def start(grammar: str | None, output: list[int], row: int = 0) -> RowStart:
    return RowStart(request=row, row=row, params=SamplingParams(grammar=grammar), seed=0,
                    prompt=np.array([1], np.int32), output=np.array(output, np.int32), stop_token_ids=(END,))


def plan(drafts: list[list[int]]) -> StepPlan:
    """One step in which each row decodes and verifies drafts."""
    draft = np.array([len(one) for one in drafts], np.int32)
    rows = np.arange(len(drafts), dtype=np.int32)
    return StepPlan(step=0, request=rows.astype(np.int64), row=rows, start=np.zeros_like(rows),
                    count=draft + 1, sample=np.ones(len(rows), np.uint8), draft=draft,
                    tokens=np.array([token for one in drafts for token in [1, *one]], np.int32),
                    num_decodes=len(rows), row_starts=(), tables=(), copies=Copies.none())


def allowed(followed: Grammars, drafts: list[list[int]]) -> list[set[int]]:
    """The tokens that each position may take."""
    masks = followed.masks(plan(drafts))
    total = sum(len(one) + 1 for one in drafts)
    logits = torch.zeros(total, VOCAB)
    if masks is not None:
        first = np.cumsum([0] + [len(one) + 1 for one in drafts])[:-1].tolist()
        logits = masks.apply(logits, list(range(len(drafts))), first, [len(one) for one in drafts],
                             keep=False)
    return [set(np.flatnonzero(row > FORBIDDEN).tolist()) for row in logits.numpy()]


def brute(pattern: str, text: bytes) -> set[int]:
    """Tokens after which the text still begins one of the words of a finite pattern, or the end where it is
    one."""
    words = [word.encode() for word in WORDS[pattern]]
    able = {token for token, piece in enumerate(PIECES)
            if piece and token != END and any(word.startswith(text + piece) for word in words)}
    return able | ({END} if text in words else set())


WORDS = {"(ab|ba)1?": ["ab", "ba", "ab1", "ba1"], "a{1,4}": ["a", "aa", "aaa", "aaaa"],
         "é[ab]12": ["éa12", "éb12"]}


@settings(max_examples=40, deadline=None)
@given(pattern=st.sampled_from(sorted(WORDS)), picks=st.lists(st.integers(0, 9), max_size=8))
def test_masks_equal_a_brute_force_walk(pattern: str, picks: list[int]) -> None:
    followed = grammars()
    assert all(re.fullmatch(pattern, word) for word in WORDS[pattern])
    grammar = structure.regex(pattern)
    followed.start(start(grammar, []))
    text, tokens = b"", list[int]()
    for pick in picks:
        right, mask = brute(pattern, text), allowed(followed, [[]])[0]
        (given,) = followed.given(np.array([0])).tolist()
        alone = {token for token in range(VOCAB) if followed.takes(0, token)}
        assert mask == ({given} if given >= 0 else alone or {END}), "asked one by one: not the mask"
        next_bytes = {PIECES[token][:1] for token in right}
        # where only one byte can follow, the tokens that an encoder would take for it
        assert mask == right if len(next_bytes) > 1 else mask and mask <= right
        token = sorted(mask)[pick % len(mask)]
        if token == END:
            break
        assert followed.accept(0, [token]) is None
        text, tokens = text + PIECES[token], [*tokens, token]
    resumed = grammars()
    resumed.start(start(grammar, tokens))
    assert allowed(resumed, [[]]) == allowed(followed, [[]])


def test_drafts_are_masked_one_behind_another_beside_a_free_row() -> None:
    followed = grammars()
    followed.start(start(structure.regex("a{1,4}"), [], row=0))
    followed.start(start(None, [], row=1))
    everything = set(range(VOCAB))
    assert allowed(followed, [[5, 1], [2]]) == [{1, 5}, {1, 5, END}, {1, END}, everything, everything]
    assert allowed(followed, [[], []])[0] == {1, 5}, "looking at drafts moved the matcher"
    followed.start(start(None, [], row=0))
    assert allowed(followed, [[], []]) == [everything, everything]


def test_after_the_end_only_the_end_and_a_wrong_token_is_told() -> None:
    followed = grammars()
    followed.start(start(structure.choice(["ab"]), []))
    assert followed.accept(0, [3]) is None
    assert allowed(followed, [[]])[0] == {END}
    assert followed.accept(0, [END]) is None
    assert allowed(followed, [[]])[0] == set(range(VOCAB)), "a text that has ended holds its matcher"
    assert followed.accept(0, [END]) is None, "the end came again, in a step that was begun before"
    followed.start(start(structure.choice(["ab"]), []))
    reason = followed.accept(0, [6])
    assert reason is not None and "grammar" in reason


def test_a_dead_end_behind_a_choice_is_told_and_is_no_end() -> None:
    """The mask of a dead end allows the text's end, which must not pass for an answer."""
    followed = grammars()
    followed.start(start(structure.grammar('start: "b" | "a" dead\ndead: dead "a"'), []))
    assert followed.accept(0, [PIECES.index(b"a")]) is None
    assert allowed(followed, [[]])[0] == {END}
    reason = followed.accept(0, [END])
    assert reason is not None and reason.startswith(structure.BROKEN)


def test_a_text_that_is_no_grammar_is_refused_when_it_is_compiled() -> None:
    with pytest.raises(RequestError, match="cannot be followed"):
        grammars().compile("start: nobody")


@settings(max_examples=30, deadline=None)
@given(pattern=st.sampled_from(["(ab|ba)12", "é(a|bb)12é", "a{1,3}é12(aab)?2"]),
       picks=st.lists(st.integers(0, 9), min_size=12, max_size=12))
def test_a_run_is_the_same_tokens_taken_at_once_or_one_by_one(pattern: str, picks: list[int]) -> None:
    """Also where the row begins again in the middle of a run."""
    grammar, texts = structure.regex(pattern), []
    for jumps in (True, False):
        followed, text = grammars(jump_ahead=jumps), list[int]()
        followed.start(start(grammar, []))
        while (mask := sorted(allowed(followed, [[]])[0])) != [END]:
            token = mask[picks[len(text)] % len(mask)]
            if token == END:
                break
            assert followed.accept(0, [token]) is None
            forced = followed.force(0, len(text) + 2)
            assert jumps or not forced
            text += [token, *forced]
            if not jumps:
                followed.start(start(grammar, text))
        texts.append(text)
    assert texts[0] == texts[1]


def test_a_run_is_masked_behind_drafts_and_not_sampled_again_once_it_is_known() -> None:
    slow, fast = grammars(jump_ahead=False), grammars()
    for followed in (slow, fast):
        followed.start(start(structure.regex("(a|b)12é"), []))
        assert allowed(followed, [[1]])[0] == {1, 2}
        assert followed.accept(0, [1]) is None
    assert slow.force(0, 2) == [] and allowed(slow, [[6, 11, 10]]) == [{6}, {11}, {10}, {END}]
    assert allowed(slow, [[11]])[0] == {6}
    assert fast.force(0, 2) == [6, 11, 10] and fast.force(0, 5) == []
    begun = fast.without_known(plan([[]]))
    assert begun.sample.tolist() == [0], "the step that was planned before samples what is known"
    assert fast.without_known(plan([[]])).sample.tolist() == [1]
    asked = start(structure.regex("(a|b)12é"), [])
    fast.start(replace(asked, params=replace(asked.params, logprobs=1)))
    assert fast.accept(0, [1]) is None and fast.force(0, 2) == [], "each token's probability is asked for"
