"""What the labs share: their common controls, and the case that these describe. Formulas are the ledger's:
nominal ones of `ledger.closed`, exact ones as the planner deploys a model.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache

from ridgeline.ledger import closed
from ridgeline.ledger.closed import Shape, shape_of
from ridgeline.ledger.deployment import UNPACK_TILE, Timing
from ridgeline.ledger.efficiency import Efficiency
from ridgeline.ledger.memory import needed_cache_bytes
from ridgeline.ledger.sums import Rows
from ridgeline.models.catalog import find_model, model_names
from ridgeline.planner.ask import CACHES, KV_BYTES, WEIGHTS, Ask
from ridgeline.planner.lab import Bar, Control, Series, Value
from ridgeline.planner.labs.forms import curve
from ridgeline.planner.plan import limits
from ridgeline.planner.setup import Setup, Workshop
from ridgeline.spec.cache import Paged, Window
from ridgeline.spec.cost import Router
from ridgeline.spec.hardware import HardwareSpec, hardware, hardware_names
from ridgeline.spec.model import ModelSpec

Values = Mapping[str, Value]

ASSUMED = Efficiency()
WORKSPACE = ASSUMED.workspace_bytes


@cache
def model(name: str) -> ModelSpec:
    return find_model(name)


def _grows(spec: ModelSpec) -> bool:
    """Whether a sequence's cache grows with it, as the closed forms take it to."""
    return any(isinstance(kept, Paged | Window) for layer in spec.layers for kept in layer.cache(1))


MODELS = tuple(name for name in model_names() if _grows(model(name)))


def choice(key: str, label: str, default: str, choices: Sequence[str], hint: str = "") -> Control:
    return Control(key=key, label=label, kind="choice", default=default, choices=tuple(choices), help=hint)


def slider(key: str, label: str, default: float, low: float, high: float, step: float = 1, *, unit: str = "",
           log: bool = False, hint: str = "") -> Control:
    return Control(key=key, label=label, kind="number", default=default, low=low, high=high, step=step,
                   unit=unit, log=log, help=hint)


def stepper(num_steps: int) -> Control:
    """The place of a page that goes step by step, from 1."""
    return slider("step", "Step", 1, 1, num_steps)


MODEL = choice("model", "Model", "llama-3-8b", MODELS)
DEVICE = choice("device", "Accelerator", "h100-sxm", hardware_names())
WEIGHT = choice("weights", "Weight precision", "bf16", WEIGHTS,
                "fp8 and int8 are multiplied as they are where the device can; int4 is unpacked first")
CACHE = choice("cache", "Cache precision", "bf16", CACHES)
CONTEXT = slider("context", "Context length", 8192, 512, 131072, unit="tokens", log=True)
BATCH = slider("batch", "Batch", 16, 1, 1024, unit="sequences", log=True)
TP = choice("tp", "Tensor parallel", "1", ("1", "2", "4", "8", "16"), "Devices that share every matrix")


def text(values: Values, key: str) -> str:
    return str(values[key])


def whole(values: Values, key: str) -> int:
    return int(values[key])


def real(values: Values, key: str) -> float:
    return float(values[key])


@cache
def shape(name: str) -> Shape:
    return shape_of(model(name))


@cache
def _device(name: str) -> HardwareSpec:
    return hardware(name)


@lru_cache(maxsize=256)
def _setup(model: str, gpu: str, weights: str, kv: str, tp: int) -> Setup:
    return Workshop().setup(Ask(model=model, gpu=gpu, weights=weights, kv=kv, tp=tp))


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What the common controls describe: a model in formats on `ways` equal devices. Bytes and seconds are
    nominal unless their name says exact; totals are of all devices, `held` of one."""

    model: str
    gpu: str
    weights: str = "bf16"
    cache: str = "bf16"
    ways: int = 1

    @staticmethod
    def of(values: Values) -> "Case":
        """From the controls that a lab has of model, device, weights, cache and tp."""
        return Case(model=text(values, "model"), gpu=str(values.get("device", DEVICE.default)),
                    weights=str(values.get("weights", "bf16")), cache=str(values.get("cache", "bf16")),
                    ways=int(values.get("tp", 1)))

    @property
    def shape(self) -> Shape:
        return shape(self.model)

    @property
    def device(self) -> HardwareSpec:
        return _device(self.gpu)

    @property
    def setup(self) -> Setup:
        """As the planner settles it. ConfigError, with the sizes that work, where `ways` divide no head."""
        return _setup(self.model, self.gpu, self.weights, self.cache, self.ways)

    @property
    def alone(self) -> Setup:
        """The same on one device."""
        return _setup(self.model, self.gpu, self.weights, self.cache, 1)

    @property
    def s_w(self) -> float:
        return self.alone.numerics.weight_bytes

    @property
    def s_c(self) -> int:
        return KV_BYTES[self.cache]

    @property
    def weight_bytes(self) -> float:
        return self.shape.num_params * self.s_w

    @property
    def memory_bytes(self) -> int:
        return self.device.marketed_bytes

    @property
    def rate(self) -> float:
        """Dense FLOP/s of products with the weights."""
        return self.alone.numerics.rates.packed

    @property
    def balance(self) -> float:
        """FLOP a byte at the ridge, in the arithmetic that is used."""
        return self.rate / self.device.bytes_per_s

    def sequence_bytes(self, context: float) -> float:
        return closed.kv_bytes(self.shape, context, self.s_c)

    def held(self, batch: float, context: float) -> float:
        """Weights and cache of one device."""
        return closed.device_bytes(self.shape, batch, context, self.s_w, self.s_c, self.ways)

    def step_s(self, batch: float, context: float) -> float:
        """Floor of a decode step by bandwidth, with the collectives at their assumed latency."""
        return closed.step_seconds(self.shape, batch, context, self.s_w, self.s_c, self.device.bytes_per_s,
                                   self.ways, ASSUMED.collective_s)

    @property
    def collectives_s(self) -> float:
        return closed.num_collectives(self.shape, self.ways) * ASSUMED.collective_s

    def prompt_s(self, num_tokens: float) -> float:
        """A prompt at the assumed share of the dense peak; weights that are not multiplied as they are held
        are unpacked first."""
        rates = self.alone.numerics.rates
        seconds = closed.prefill_flops(self.shape, num_tokens) / (rates.packed * ASSUMED.prefill)
        if rates.unpack:
            seconds += closed.unpack_flops(self.shape.num_params, num_tokens, UNPACK_TILE) / rates.unpack
        return seconds / self.ways + self.collectives_s

    def resident(self, context: float, workspace_bytes: float = 0) -> int:
        """Sequences that fit beside the weights on every device."""
        return closed.max_sequences(self.memory_bytes, self.held(0, context),
                                    self.held(1, context) - self.held(0, context), workspace_bytes)

    def residents(self, name: str, lengths: Sequence[float],
                  workspace_bytes: float = 0) -> tuple[Series, ...]:
        """A curve of the sequences that fit, over the lengths of which one fits; () where none does."""
        some = [n for n in lengths if self.resident(n, workspace_bytes)]
        return (curve(name, some, lambda n: self.resident(n, workspace_bytes)),) if some else ()

    def memory(self, title: str, batch: float, context: float, space: float = WORKSPACE) -> Bar:
        """What one device holds."""
        bare = self.held(0, context)
        named = (("weights", bare), ("KV cache", self.held(batch, context) - bare), ("workspace", space))
        return Bar(key="memory", title=title, total=self.memory_bytes,
                   parts=tuple(part for part in named if part[0] != "workspace" or space))

    def exact_cross(self, context: int) -> float:
        """Batch at which a step reads as much cache as weights, of experts the distinct ones."""
        asked = replace(self.setup.ask, prompt=context - 1, output=2)  # so that `context` is its middle
        return limits(replace(self.setup, ask=asked))[1]

    def exact_weights_bytes(self) -> float:
        """All weights with scales, as one device holds them."""
        return self.alone.deployment.stages[0].weights_bytes

    def exact_sequence_bytes(self, context: int) -> int:
        """Windows, shared layers and states counted as they are."""
        return needed_cache_bytes(model(self.model), context, self.s_c)

    def exact_resident(self, context: int, workspace_bytes: float) -> int:
        """Sequences that fit beside the weights, all as one device holds them."""
        stage = self.setup.deployment.stages[0]
        each = needed_cache_bytes(stage.spec, context, self.s_c)
        return closed.max_sequences(self.memory_bytes, stage.weights_bytes, each, workspace_bytes)

    def decode(self, batch: int, context: int, new: int = 1) -> Timing:
        """Floor and estimate of a step of rows whose first new token is their token number `context`."""
        return self.setup.deployment.decode([Rows(rows=batch, start=context - 1, count=new, projected=new)])

    def prefill(self, num_tokens: int) -> Timing:
        """Floor and estimate of one prompt."""
        return self.setup.deployment.prefill(Rows(rows=1, start=0, count=num_tokens))

    def weights_read(self, num_tokens: int) -> float:
        """Bytes that a step of so many tokens reads beside the cache: of experts, the distinct ones."""
        step = self.alone.deployment.decode([Rows(rows=num_tokens, start=0, count=1)]).steps[0]
        return step.moved_bytes - step.cache_bytes

    def params_without_tables(self) -> int:
        """Parameters beside the embedding and the head."""
        return sum(param.num_elements for name, param in model(self.model).params()
                   if name not in ("embed.weight", "head.weight"))

    def routers(self) -> dict[Router, int]:
        """(experts, chosen, ...) -> layers."""
        return self.alone.deployment.stages[0].account.layers_by_router()

    def notes(self) -> tuple[str, ...]:
        """What to know of the device, and of a model whose nominal reading is far from the exact one."""
        usable = self.device.usable_bytes
        driver = f"{usable / 1e9:.4g} GB by its driver" if usable else "its driver's figure is not known here"
        return (f"Memory of {self.device.name}: {self.memory_bytes / 1e9:.4g} GB as sold, {driver}.",
                *(["The nominal reading counts every expert as read and computed: look at the exact one."]
                  if self.routers() else []))
