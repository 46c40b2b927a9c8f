"""Prompts of a given number of tokens for a server whose tokenizer nobody knows.

Words that are one token in nearly every vocabulary are taken from one long text, at another place for each
request, so that no prompt begins like another unless they are to share a prefix. How many tokens a word is,
and how many a template adds, is learnt from two answers' usage.
"""

from dataclasses import dataclass

import numpy as np

from ridgeline.workload.offered import Offered

_WORDS = (
    "time", "people", "year", "way", "day", "man", "thing", "woman", "life", "child", "world", "school",
    "state", "family", "student", "group", "country", "problem", "hand", "part", "place", "case", "week",
    "company", "system", "program", "question", "work", "government", "number", "night", "point", "home",
    "water", "room", "mother", "area", "money", "story", "fact", "month", "lot", "right", "study", "book",
    "eye", "job", "word", "business", "issue", "side", "kind", "head", "house", "service", "friend",
    "father", "power", "hour", "game", "line", "end", "member", "law", "car", "city", "community", "name",
    "president", "team", "minute", "idea", "body", "information", "back", "parent", "face", "others",
    "level", "office", "door", "health", "person", "art", "war", "history", "party", "result", "change",
    "morning", "reason", "research", "girl", "guy", "moment", "air", "teacher", "force", "education",
)
_TEXT_WORDS = 1 << 18  # the longest prompt, too
_STRIDE = 100_003  # odd: every place is taken once before one comes again


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """tokens = overhead + per_word * words, as the server counts."""

    per_word: float = 1.0
    overhead: float = 0.0

    @classmethod
    def of(cls, few: tuple[int, int], many: tuple[int, int]) -> "Fit":
        """From two prompts' (words, tokens)."""
        per_word = (many[1] - few[1]) / (many[0] - few[0])
        return cls(per_word=per_word, overhead=few[1] - per_word * few[0])


class Prompts:
    """Texts of a workload. The same seed gives the same texts."""

    def __init__(self, seed: int) -> None:
        picked = np.random.default_rng(seed).integers(len(_WORDS), size=_TEXT_WORDS)
        words = [f" {word}" for word in _WORDS]
        self._text = "".join([words[i] for i in picked.tolist()]) * 2  # the end goes on at the beginning
        lengths = np.array([len(word) for word in words])[picked]
        self._starts = np.concatenate([[0], np.cumsum(np.tile(lengths, 2))])

    def text(self, place: int, num_words: int) -> str:
        """The words at a place; other places begin with other words."""
        start = place * _STRIDE % _TEXT_WORDS
        return self._text[self._starts[start]:self._starts[start + min(num_words, _TEXT_WORDS)]]

    def prompt(self, number: int, offered: Offered, fit: Fit) -> str:
        """The text of a workload's request: its shared blocks, then words of its own."""
        num_words = max(round((offered.num_prompt - fit.overhead) / fit.per_word), 1)
        block = round(offered.block_tokens / fit.per_word)
        shared = [self.text(-1 - one, block) for one in offered.prefix]
        return "".join(shared) + self.text(number, num_words - block * len(shared))
