"""The memory of one device of a stage, by term: what is fixed, and what each sequence adds. The sum of the
terms is the capacity. Knows no time.
"""

from dataclasses import dataclass

from ridgeline.base.errors import ConfigError
from ridgeline.ledger.efficiency import Efficiency
from ridgeline.ledger.layout import Stage
from ridgeline.ledger.memory import needed_cache_bytes, step_bytes
from ridgeline.models.families import FAMILIES
from ridgeline.planner.ask import KV_BYTES, Ask
from ridgeline.spec.cache import CacheLayout, Paged, plan_layout
from ridgeline.spec.model import ModelSpec

BLOCK_TOKENS = 16  # of a cache page
STEP_TOKENS = 8192  # most of one step: a longer prompt goes through in chunks of it
_FEWEST_STEP_TOKENS = 1024  # that a step of decodes is given room for
_ELEMENT = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """One device's memory with some sequences of the asked length, bytes. needed: of the cache, to the byte;
    rounding: what whole pages add. All terms sum to the capacity; spare is negative where they do not fit."""

    capacity: int
    weights: float
    kv_needed: float
    kv_rounding: float
    activations: float
    workspace: float
    draft: float
    adapters: float
    spare: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """One device of a stage. step_bytes: activations of the widest step; row_bytes: logits and what else a
    step holds of each sequence; shared: tokens of a prefix that is held once. All bytes."""

    capacity: int
    weights: float
    step_bytes: float
    row_bytes: float
    workspace: float
    draft: float
    adapters: float
    layout: CacheLayout
    stage: Stage
    element_bytes: int
    shared: int

    @property
    def fixed(self) -> float:
        return self.weights + self.step_bytes + self.workspace + self.draft + self.adapters

    @property
    def shared_pages(self) -> int:
        """Pages of the common prefix."""
        return sum(self.shared // one.tokens_per_page for one in self.layout.groups if one.kind is Paged)

    def num_pages(self, rows: int) -> int:
        """Pages beside so many sequences' activations, page 0 (never given out) included."""
        return max(int((self.capacity - self.fixed - rows * self.row_bytes) // self.layout.page_bytes), 0)

    def fits(self, length: int, rows: int) -> bool:
        """True when `rows` sequences of `length` tokens can be resident together."""
        shared = self.shared_pages
        pages = rows * (self.layout.pages_for(length) - shared) + shared
        return pages <= self.num_pages(rows) - 1

    def max_rows(self, length: int) -> int:
        """Sequences of `length` tokens that are resident together."""
        shared, page = self.shared_pages, self.layout.page_bytes
        each = (self.layout.pages_for(length) - shared) * page + self.row_bytes
        rows = max(int((self.capacity - self.fixed - (1 + shared) * page) / each), 0)
        return rows if self.fits(length, rows) or not rows else rows - 1

    def held(self, length: int, rows: int) -> Held:
        """The terms with `rows` sequences of `length` tokens."""
        shared = self.shared_pages
        pages = rows * (self.layout.pages_for(length) - shared) + shared
        needed = rows * needed_cache_bytes(self.stage.spec, length, self.element_bytes)
        needed -= min(max(rows - 1, 0) * shared * self.layout.page_bytes, needed)
        rounding = pages * self.layout.page_bytes - needed
        activations = self.step_bytes + rows * self.row_bytes
        return Held(capacity=self.capacity, weights=self.weights, kv_needed=needed, kv_rounding=rounding,
                    activations=activations, workspace=self.workspace, draft=self.draft,
                    adapters=self.adapters,
                    spare=self.capacity - self.fixed - rows * self.row_bytes - needed - rounding)


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What a stage's share of a model needs at a width of step, in whichever format its weights are: see
    Room. adapter_bytes: of one adapter, of the asked rank."""

    layout: CacheLayout
    step_bytes: float
    row_bytes: float
    element_bytes: int
    adapter_bytes: int


def need_of(ask: Ask, share: ModelSpec) -> Need:
    """A share with the ask's cache, its widest step, and an adapter. That step is a prompt, or what decodes
    are given room for."""
    tokens, element = min(STEP_TOKENS, max(ask.prompt, _FEWEST_STEP_TOKENS)), KV_BYTES[ask.kv]
    none, one = (step_bytes(share, step_tokens=tokens, num_seqs=rows, context=ask.prompt,
                            element_bytes=_ELEMENT)
                 for rows in (0, 1))
    return Need(step_bytes=none, row_bytes=one - none, element_bytes=element,
                adapter_bytes=_adapter_bytes(ask, share),
                layout=plan_layout(share.cache(element), block_tokens=BLOCK_TOKENS))


def room_of(ask: Ask, stage: Stage, need: Need, capacity: int, eff: Efficiency,
            added_bytes: float = 0.0) -> Room:
    """The memory that an ask finds. added_bytes: of weights beside the model's: an encoder on the first
    stage. A draft weighs what its cost says: that share of the weights; logits of every prompt position are
    held where they are asked for."""
    positions = ask.prompt if ask.prompt_logprobs else 0
    return Room(capacity=capacity, weights=stage.weights_bytes + added_bytes * stage.first, stage=stage,
                row_bytes=need.row_bytes,
                step_bytes=need.step_bytes + positions * stage.spec.vocab_size * 4, shared=ask.shared_prefix,
                workspace=eff.workspace_bytes if ask.workspace_bytes is None else ask.workspace_bytes,
                draft=ask.speculate.draft * stage.weights_bytes if ask.speculate else 0.0,
                adapters=ask.max_loras * need.adapter_bytes, element_bytes=need.element_bytes,
                layout=need.layout)


def _adapter_bytes(ask: Ask, share: ModelSpec) -> int:
    """Low-rank pairs beside a device's share of every linear layer outside experts."""
    if not ask.max_loras:
        return 0
    from ridgeline.models.adapter import MAX_RANK, slot_bytes  # most plans have none and answer sooner

    if share.family not in FAMILIES:
        raise ConfigError(f"--max-loras {ask.max_loras}: where adapters of {share.family} models stand "
                          "is not described yet: leave it out")
    return slot_bytes(share, ask.max_lora_rank or MAX_RANK, element_bytes=_ELEMENT, stacked=True)
