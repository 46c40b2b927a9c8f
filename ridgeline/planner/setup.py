"""From an ask to a deployment: the model, the device, the layout, the numeric path and the memory. What was
chosen because the ask left it open is said in `choices`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import ceil, log2

from ridgeline.base.errors import ConfigError
from ridgeline.ledger.closed import Shape, shape_of
from ridgeline.ledger.deployment import Deployment, Rates
from ridgeline.ledger.efficiency import Efficiency
from ridgeline.ledger.layout import Cut, Layout, cut, num_experts, stages, tensor_sizes
from ridgeline.ledger.work import StageLines, lines_of
from ridgeline.models.catalog import Found, find
from ridgeline.planner.ask import KV_BYTES, Ask
from ridgeline.planner.room import Held, Need, Room, need_of, room_of
from ridgeline.planner.sight import Sight, look
from ridgeline.spec.block import ParamSpec
from ridgeline.spec.hardware import HardwareSpec, hardware
from ridgeline.spec.model import ModelSpec
from ridgeline.spec.quant import FORMATS, WeightFormat, WeightPlan

_FORMATS = {"bf16": "", "fp8": "fp8", "int8": "int8_row", "int4": "int4_g128"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Numerics:
    """How weights are held and multiplied. weights: what the reader is told. weight_bytes: mean of a
    parameter, of the nominal reading. native: the device multiplies packed weights as they are."""

    weights: str
    weight_bytes: float
    native: bool
    rates: Rates


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """All that is settled before a batch is; ask.prompt has the visual tokens in. sight: of a request's
    images. shape: of the closed forms. rooms: the memory of one device of
    each stage."""

    ask: Ask
    spec: ModelSpec
    shape: Shape
    device: HardwareSpec
    layout: Layout
    numerics: Numerics
    sight: Sight | None
    deployment: Deployment
    rooms: tuple[Room, ...]
    choices: tuple[str, ...]

    @property
    def length(self) -> int:
        """Tokens of a sequence at its end."""
        return self.ask.prompt + self.ask.output

    @property
    def assumed(self) -> tuple[str, ...]:
        """Figures of the device that this plan's times stand on and that are assumed."""
        rates = (self.numerics.rates.packed, self.numerics.rates.plain)
        used = {name for name, rate in self.device.flops_per_s.items() if rate in rates} | {"bytes_per_s"}
        return tuple(name for name in self.device.assumed if name in used)

    @property
    def lanes(self) -> int:
        """Groups of the deployment that decode different sequences."""
        return self.layout.groups * self.layout.dp

    def rows(self, batch: float) -> int:
        """Sequences of the fullest lane."""
        return ceil(batch / self.lanes)

    def max_rows(self) -> int:
        """Sequences of the asked length that a lane holds."""
        return min(room.max_rows(self.length) for room in self.rooms)

    def max_tokens(self, rows: int = 1) -> int:
        """The longest sequences of which a lane holds so many, 0 where not even the shortest fit."""
        low, high = 0, 1 << 26
        while low < high:
            middle = (low + high + 1) // 2
            fits = all(room.fits(middle, rows) for room in self.rooms)
            low, high = (middle, high) if fits else (low, middle - 1)
        return low

    def held(self, rows: int) -> Held:
        """The memory of the fullest device."""
        return min((room.held(self.length, rows) for room in self.rooms), key=lambda one: one.spare)


class Workshop:
    """Opens models and devices and builds deployments, each once: a search asks for the same ones often."""

    def __init__(self, efficiency: Efficiency | None = None, device: HardwareSpec | None = None) -> None:
        self._efficiency, self._device = efficiency or Efficiency(), device
        self._devices: dict[str, HardwareSpec] = {}
        self._cuts: dict[tuple[object, ...], Cut] = {}
        self._needs: dict[tuple[object, ...], tuple[Need, ...]] = {}
        self._shapes: dict[tuple[str, str], Shape] = {}
        self._models: dict[tuple[str, str], Found] = {}
        self._stages: dict[tuple[object, ...], tuple[StageLines, ...]] = {}
        self._deployments: dict[tuple[object, ...], Deployment] = {}

    @property
    def efficiency(self) -> Efficiency:
        return self._efficiency

    def setup(self, ask: Ask) -> Setup:
        """ConfigError, naming the flag and what works, where the ask cannot be met by any arithmetic."""
        found, device = self.model(ask), self.device(ask)
        spec = found.spec
        sight = look(ask.pictures, spec.vision) if ask.pictures else None
        ask = replace(ask, prompt=ask.prompt + sight.tokens) if sight else ask
        layout, choices = choose_layout(ask, spec)
        if ask.skew and not num_experts(spec):
            raise ConfigError(f"--skew {ask.skew:g} is of routed experts, and {ask.model} has none: leave it "
                              "out")
        name, formats, packed = formats_of(ask, found)
        numerics, why = choose_numerics(ask, spec, device, name, packed)
        shape = (ask.model, str(ask.overrides), layout.tp, layout.pp, layout.ep)
        if shape not in self._cuts:
            self._cuts[shape] = cut(spec, layout)
        key = (*shape, name, ask.kv, ask.skew)
        if key not in self._stages:
            found_stages = stages(self._cuts[shape], weight_bytes=formats.num_bytes, skew=ask.skew,
                                  cache_element_bytes=KV_BYTES[ask.kv], layer_key=formats.layer_key)
            self._stages[key] = lines_of(found_stages, layout)
        full = (*key, device.name, numerics.native)
        if full not in self._deployments:
            self._deployments[full] = Deployment(of_stages=self._stages[key], device=device,
                                                 rates=numerics.rates, efficiency=self._efficiency)
        capacity = ask.memory_bytes or device.marketed_bytes
        needs = (*shape, ask.kv, ask.prompt, bool(ask.max_loras), ask.max_lora_rank)
        if needs not in self._needs:
            shares = {id(share): share for share in self._cuts[shape].shares}
            made = {at: need_of(ask, share) for at, share in shares.items()}
            self._needs[needs] = tuple(made[id(share)] for share in self._cuts[shape].shares)
        added = sight.added_bytes if sight else 0.0
        rooms = tuple(room_of(ask, lines.stage, need, capacity, self._efficiency, added)
                      for lines, need in zip(self._stages[key], self._needs[needs], strict=True))
        return Setup(ask=ask, spec=spec, shape=self._shape(ask), device=device, layout=layout, rooms=rooms,
                     numerics=numerics, sight=sight, deployment=self._deployments[full],
                     choices=(*choices, *why, *([sight.note] if sight and sight.note else [])))

    def _shape(self, ask: Ask) -> Shape:
        key = (ask.model, str(ask.overrides))
        if key not in self._shapes:
            self._shapes[key] = shape_of(self.model(ask).spec)
        return self._shapes[key]

    def model(self, ask: Ask) -> Found:
        """The model as its name or files say, with the fields that the ask changes."""
        key = (ask.model, str(ask.overrides))
        if key not in self._models:
            self._models[key] = find(ask.model, ask.overrides)
        return self._models[key]

    def device(self, ask: Ask) -> HardwareSpec:
        if self._device is not None:
            return self._device
        if ask.gpu not in self._devices:
            self._devices[ask.gpu] = hardware(ask.gpu)
        return self._devices[ask.gpu]


def choose_layout(ask: Ask, spec: ModelSpec) -> tuple[Layout, list[str]]:
    """Degrees as given; those left open fill the devices: tensor parallel as far as it divides, then
    replicas."""
    choices = []
    pp, ep = ask.pp or 1, ask.ep or 1
    tp = ask.tp
    if tp is None:
        room = max((ask.gpus or 1) // (pp * (ask.dp or 1)), 1)
        tp = max(t for t in tensor_sizes(spec) if t <= room and room % t == 0) if ask.ep is None else 1
        if ask.gpus and ask.gpus > 1:
            choices.append(f"TP {tp} of {ask.gpus} devices, as no --tp was given")
    layout = Layout(tp=tp, pp=pp, ep=ep, dp=ask.dp or 1)
    if ask.gpus is None:
        return layout, choices
    if ask.dp is None and ask.gpus % layout.replica_devices == 0:
        layout = Layout(tp=tp, pp=pp, ep=ep, dp=ask.gpus // layout.replica_devices)
    if layout.num_devices != ask.gpus:
        raise ConfigError(f"--gpus {ask.gpus} and {layout.text()}, which is {layout.num_devices} devices, "
                          "contradict one another: leave --gpus out or change a degree")
    return layout, choices


@dataclass(frozen=True, slots=True, kw_only=True)
class Formats:
    """How the weights of a plan are held: the blocks' matrices packed but for stay_plain (parts of their full
    names); embedding, head and small tensors in the model's own float type, as packed checkpoints have them.
    stored: bytes of each parameter of a checkpoint's files, which go before all formats; whole: its
    elements."""

    plan: WeightPlan
    stay_plain: tuple[str, ...] = ()
    stored: Mapping[str, int] = field(default_factory=dict)
    whole: Mapping[str, int] = field(default_factory=dict)

    def num_bytes(self, name: str, param: ParamSpec) -> float:
        """`ledger.account.WeightBytes`; a share of a stored tensor has its share of the bytes."""
        named = "embed.weight" if name == "head.weight" and name not in self.stored else name  # tied
        if named in self.stored:
            return self.stored[named] * param.num_elements / self.whole[named]
        if any(part in name for part in self.stay_plain):
            return replace(self.plan, linear=self.plan.head).num_bytes(name, param)
        return self.plan.num_bytes(name, param)

    def layer_key(self, index: int) -> object:
        """Differs where two equal layers are held in different formats."""
        prefix = f"layers.{index}."
        return tuple(size for name, size in self.stored.items() if name.startswith(prefix))


def formats_of(ask: Ask, found: Found) -> tuple[str, Formats, WeightFormat | None]:
    """(name, formats, the packed one): as asked, else as the files or the published checkpoint hold the
    model."""
    spec = found.spec
    plain = FORMATS[spec.dtype]
    if ask.weights is None and found.stored_bytes:
        whole = {name: param.num_elements for name, param in spec.params()}
        same = WeightPlan(linear=plain, head=plain, embed=plain, other=plain)
        packed = sum(found.stored_bytes.values()) < 1.5 * spec.num_params
        return "as stored", Formats(plan=same, stored=found.stored_bytes, whole=whole), (
            FORMATS["q8_g32"] if packed else None)
    name = spec.stored_as if ask.weights is None else _FORMATS[ask.weights]
    packing = FORMATS[name] if name else None
    plan = WeightPlan(linear=packing or plain, head=plain, embed=plain, other=plain)
    formats = Formats(plan=plan, stay_plain=spec.stored_plain if ask.weights is None else ())
    return name or "bf16", formats, packing


def _said(name: str) -> str:
    """A format in a sentence."""
    return "the file's packed" if name == "as stored" else name


def choose_numerics(ask: Ask, spec: ModelSpec, device: HardwareSpec, name: str,
                    packed: WeightFormat | None) -> tuple[Numerics, list[str]]:
    """Packed weights are multiplied as they are where the device can, else unpacked into 16 bit first."""
    rates: Mapping[str, float] = device.flops_per_s
    plain = next((rates[dtype] for dtype in ("bfloat16", "float16") if dtype in rates), device.peak_rate)
    if packed is None:
        rate = Rates(packed=plain, plain=plain)
        return Numerics(weights=name, weight_bytes=2.0, native=True, rates=rate), []
    if packed.dtype in rates and not ask.weight_only:
        return Numerics(weights=name, weight_bytes=packed.bits / 8, native=True,
                        rates=Rates(packed=rates[packed.dtype], plain=plain,
                                    blocked=packed.group_rows > 1)), []
    why = [] if ask.weight_only else [f"{device.name} does not multiply {_said(name)} weights: they are "
                                      "unpacked before 16-bit products"]
    unpack, halved = rates.get("float32", plain), log2(16 / packed.bits)
    return Numerics(weights=name, weight_bytes=packed.bits / 8, native=False,
                    rates=Rates(packed=plain, plain=plain, unpack=unpack, halved=halved)), why
