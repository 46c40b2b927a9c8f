"""Costs as linear forms over a step's sums: equal layers fold into one line and pricing is a dot product.

A step is summed once: tokens, rows, projected positions, whether any position is projected at all, for each
distinct attention window of the model the (query, key) pairs that are visible and the keys that are read, and
for each distinct router the experts that the step's tokens are expected to choose. Rows of few tokens, which
some blocks compute otherwise than chunks, are counted apart as well. A cost line has a vector of coefficients
over them.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

ONE, TOKENS, ROWS, PROJECTED, PROJECTS = "one", "tokens", "rows", "projected", "projects"
PAIRS, CONTEXT, DISTINCT = "pairs", "context", "distinct"
FEW = FEW_TOKENS, FEW_PAIRS, FEW_KEYS = "few", "few_pairs", "few_keys"
MOST_FEW = 8  # tokens of a row that verifies drafts, at most
Router = tuple[int, int] | tuple[int, int, float, int]  # (experts, chosen by a token[, skew, groups])
Term = tuple[str, int | Router | None]  # PAIRS and CONTEXT of a window (None: full)
Form = tuple[tuple[Term, float], ...]


def form(*, one: float = 0, tokens: float = 0, rows: float = 0, projected: float = 0, projects: float = 0,
         pairs: float = 0, context: float = 0, window: int | None = None, few: float = 0,
         few_pairs: float = 0, few_keys: float = 0) -> Form:
    """A linear form; zero coefficients are left out. window applies to pairs and context; projects counts
    once in a step that projects any position; few counts the tokens of rows that have few, few_pairs and
    few_keys their pairs and context."""
    items = ((ONE, None, one), (TOKENS, None, tokens), (ROWS, None, rows), (PROJECTED, None, projected),
             (PROJECTS, None, projects), (PAIRS, window, pairs), (CONTEXT, window, context),
             (FEW_TOKENS, None, few), (FEW_PAIRS, None, few_pairs), (FEW_KEYS, None, few_keys))
    return tuple(((name, w), float(value)) for name, w, value in items if value)


def distinct(num_experts: int, top_k: int, value: float) -> Form:
    """value times the number of distinct experts that the step's tokens choose."""
    return (((DISTINCT, (num_experts, top_k)), value),)


def expected_distinct(router: Router, tokens: float) -> float:
    """Distinct experts that B tokens choose: E (1 - (1 - k/E)^B) when each choice is as likely.

    A router with a skew s > 0 prefers its i-th best liked expert by i^-s (Zipf), an expert being taken once
    by a token at most; with groups g, the same experts serve g groups of as many tokens.
    """
    num_experts, top_k, *more = router
    skew, groups = more or (0.0, 1)
    if not skew:
        return float(num_experts * (1.0 - (1.0 - top_k / num_experts) ** (tokens * groups)))
    return sum(1.0 - (1.0 - chance) ** (tokens * groups) for chance in _chances(num_experts, top_k, skew))


@cache
def _chances(num_experts: int, top_k: int, skew: float) -> tuple[float, ...]:
    """Each expert's chance to be among a token's top_k: c * i^-skew, capped at 1, and top_k in sum."""
    weights = [(i + 1.0) ** -skew for i in range(num_experts)]
    for certain in range(top_k):  # the best liked experts that every token takes
        share = (top_k - certain) / sum(weights[certain:])
        if share * weights[certain] <= 1:
            return (1.0,) * certain + tuple(share * w for w in weights[certain:])
    return (1.0,) * top_k + (0.0,) * (num_experts - top_k)


def scale(one: Form, factor: float) -> Form:
    """The form times a number."""
    return tuple((term, value * factor) for term, value in one)


def add(forms: Iterable[Form]) -> Form:
    """The sum of several forms, term by term."""
    total: dict[Term, float] = {}
    for one in forms:
        for term, value in one:
            total[term] = total.get(term, 0.0) + value
    return tuple(total.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class CostLine:
    """One operation of a block.

    op: the name in reports ("qkv", "attention"). flops, read, written, sent: forms (FLOPs and bytes;
    activations and cache only). weights: names of the block's params whose bytes one step reads once, priced
    by their format. share: a form; the part of the params share_of that a step
    reads. cache_read, cache_written: forms in cache *elements*, priced by the cache's dtype.
    """

    op: str
    flops: Form = ()
    read: Form = ()
    written: Form = ()
    sent: Form = ()
    weights: tuple[str, ...] = ()
    share: Form = ()
    share_of: tuple[str, ...] = ()
    cache_read: Form = ()
    cache_written: Form = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSums:
    """A step in numbers; `ledger.sums` makes one.

    windows: each distinct window (None: full) -> (pairs, context). pairs: visible (query, key) pairs summed
    over rows. context: keys read, each row's once. few: (tokens, pairs, context) of the rows of at most
    MOST_FEW tokens.
    """

    tokens: int
    rows: int
    projected: int
    windows: dict[int | None, tuple[int, int]]
    few: tuple[int, int, int] = (0, 0, 0)

    def value(self, term: Term) -> float:
        name, of = term
        if name == ONE:
            return 1.0
        if name == PROJECTS:
            return float(self.projected > 0)
        if isinstance(of, tuple):
            return expected_distinct(of, self.tokens)
        if name == PAIRS:
            return float(self.windows[of][0])
        if name == CONTEXT:
            return float(self.windows[of][1])
        few = dict(zip(FEW, self.few))
        return float({TOKENS: self.tokens, ROWS: self.rows, PROJECTED: self.projected, **few}[name])
