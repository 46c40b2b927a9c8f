"""Which adapter is loaded under which name, in which slot, and for whom: beside the loop, off its path.

A name that is unloaded is gone for new requests at once; those that have it go on to their ends, and then the
slot is free. Files are read by a thread, into a slot that is free already, so that there are never more
adapters than slots in memory. Called by one thread.
"""

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from typing import Any

import torch

from ridgeline.adapters.load import Adapter, load_adapter
from ridgeline.adapters.slots import AdapterSlots
from ridgeline.adapters.stacked import AnySlots, StackedSlots
from ridgeline.base.config import EngineConfig
from ridgeline.base.errors import ConfigError, RequestError, RidgelineError
from ridgeline.base.units import format_bytes
from ridgeline.engine.deterministic import prove_adapter
from ridgeline.engine.startup import Startup
from ridgeline.kernels.gpu import Gpu
from ridgeline.models.adapter import MAX_RANK, read_adapter, seat_shapes, slot_bytes
from ridgeline.schedule.request import NewRequest
from ridgeline.spec.model import ModelSpec

Put = Callable[[int, Adapter | None], None]
MOST_NAME = 256  # characters
Key = tuple[bytes, str]  # whose call of `load` it was: a client, and a name of its own


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seated:
    """An adapter in its slot. info: what is said of it."""

    slot: int
    digest: str
    info: Mapping[str, Any]


@dataclass(slots=True, kw_only=True)
class _Loading:
    """An adapter on its way. replaces: what has the name until then gives it up. slot: 0 until one is
    free."""

    key: Key
    name: str
    path: str
    replaces: bool
    slot: int = 0
    reading: Future[Adapter] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """What became of a call of `load`, by the caller's key."""

    key: Key
    info: Mapping[str, Any]
    error: Exception | None = None


class Adapters:
    """The adapters of one engine.

    put: brings an adapter into a slot of the model between two steps, None empties it. fixed: none comes or
    goes by a call from outside. prove: raises for one that cannot be served, once it is read.
    """

    def __init__(
        self,
        slots: AnySlots,
        spec: ModelSpec,
        *,
        max_rank: int,
        put: Put,
        fixed: bool,
        prove: Callable[[Adapter], None] | None = None,
    ) -> None:
        self._slots, self._spec, self._max_rank, self._put = slots, spec, max_rank, put
        self.fixed, self._prove = fixed, prove
        self._free = deque(range(1, slots.num_slots + 1))
        self._named: dict[str, _Seated] = {}
        self._users: Counter[int] = Counter()  # living requests by slot
        self._num_bytes: dict[int, int] = {}  # by slot
        self._draining: set[int] = set()
        self._loading: list[_Loading] = []
        self._thread = ThreadPoolExecutor(1, "adapters", torch.set_num_threads, (torch.get_num_threads(),))

    def __len__(self) -> int:
        """Adapters on their way."""
        return len(self._loading)

    @property
    def infos(self) -> list[Mapping[str, Any]]:
        """Of what is loaded: name, path, base, rank and bytes."""
        return [seated.info for seated in self._named.values()]

    def num_bytes(self, slot: int) -> int:
        """What a step reads of the adapter in a slot: all of it, once. 0 for an empty one."""
        return self._num_bytes.get(slot, 0)

    # ---- requests

    def seat(self, request: NewRequest, name: str) -> NewRequest:
        """The request with the slot of an adapter, and a salt by which nothing is shared beyond those that
        compute the same. RequestError for a name that is not loaded."""
        seated = self._named.get(name)
        if seated is None:
            raise RequestError(
                f"the model {name!r:.200} does not exist here: load the adapter first",
                param="model",
                code="model_not_found",
                status=404,
            )
        return replace(request, adapter=seated.slot, cache_salt=f"\0{seated.digest}\0{request.cache_salt}")

    def joined(self, slot: int) -> None:
        """A request of this slot lives; slot 0 is nobody's."""
        self._users[slot] += 1

    def left(self, slot: int) -> None:
        """It has ended."""
        self._users[slot] -= 1
        self._sweep()

    # ---- loading

    def load(self, key: Key, name: str, path: str, *, replaces: bool = False) -> None:
        """Begin to load; `take` has the outcome under `key`. RequestError for what is wrong already."""
        if not 0 < len(name) <= MOST_NAME:
            raise RequestError(
                f"lora_name: give a name of 1 to {MOST_NAME} characters",
                param="lora_name",
                code="invalid_value",
            )
        if any(one.name == name for one in self._loading):
            raise RequestError(
                f"an adapter is being loaded as {name!r} already", param="lora_name", status=409
            )
        if name in self._named and not replaces:
            raise RequestError(
                f"an adapter is loaded as {name!r} already: unload it first, or send load_inplace",
                param="lora_name",
                code="invalid_value",
            )
        awaited = sum(not one.slot for one in self._loading)
        if len(self._free) + len(self._draining) <= awaited:
            raise RequestError(
                f"all {self._slots.num_slots} slots are taken: unload an adapter first, or start with "
                "a larger --max-loras",
                param="lora_name",
                code="no_free_slot",
            )
        self._loading.append(_Loading(key=key, name=name, path=path, replaces=replaces))
        self._sweep()

    def wait(self) -> None:
        """Until one of those that are being read is."""
        wait([one.reading for one in self._loading if one.reading is not None], return_when=FIRST_COMPLETED)

    def take(self) -> list[Loaded]:
        """What has been loaded, or could not be, since the last call."""
        done = [one for one in self._loading if one.reading is not None and one.reading.done()]
        return [self._finish(one) for one in done]

    def unload(self, name: str) -> None:
        """The name is gone; its slot is free when the last of its requests has ended. RequestError for a name
        that is not loaded."""
        if name not in self._named:
            raise RequestError(
                f"no adapter is loaded as {name!r:.200}",
                param="lora_name",
                code="model_not_found",
                status=404,
            )
        self._draining.add(self._named.pop(name).slot)
        self._sweep()

    def close(self) -> None:
        self._thread.shutdown(cancel_futures=True)

    def _finish(self, one: _Loading) -> Loaded:
        self._loading.remove(one)
        assert one.reading is not None
        error = one.reading.exception()
        if error is not None:
            self._free.append(one.slot)
            self._sweep()
            if isinstance(error, RidgelineError):
                error = RequestError(str(error), param="lora_path", code="invalid_value")
            return Loaded(
                key=one.key, info={}, error=error if isinstance(error, Exception) else RuntimeError()
            )
        adapter = one.reading.result()
        self._put(one.slot, adapter)
        self._num_bytes[one.slot] = adapter.num_bytes
        if one.name in self._named:
            self.unload(one.name)
        info = {"name": one.name, "path": one.path, "rank": adapter.rank, "num_bytes": adapter.num_bytes}
        self._named[one.name] = _Seated(slot=one.slot, digest=adapter.digest, info=info)
        return Loaded(key=one.key, info=info)

    def _sweep(self) -> None:
        """Slots that nobody has any more are free, and whoever waits for one begins to read."""
        for slot in [slot for slot in self._draining if not self._users[slot]]:
            self._draining.remove(slot)
            self._put(slot, None)
            del self._num_bytes[slot]
            self._free.append(slot)
        for one in self._loading:
            if not one.slot and self._free:
                one.slot = self._free.popleft()
                one.reading = self._thread.submit(self._read, one.path)

    def _read(self, path: str) -> Adapter:
        file = read_adapter(path, self._spec, max_rank=self._max_rank)
        adapter = load_adapter(file, self._slots.seats, self._slots.dtype)
        if self._prove is not None:
            self._prove(adapter)
        return self._slots.ready(adapter)


def need_adapters(adapters: Adapters | None, *, to_change: bool = False) -> Adapters:
    """RequestError where the engine has room for none, or only for those that it started with."""
    if adapters is not None and to_change and adapters.fixed:
        raise RequestError(
            "the adapters of this server are those that it started with: start it with --max-loras N",
            param="lora_name",
            code="unsupported",
            status=403,
        )
    if adapters is None:
        raise RequestError(
            "this server has no room for adapters: start it with --max-loras N",
            param="model",
            code="unsupported",
        )
    return adapters


def seated(adapters: Adapters | None, request: NewRequest, name: str) -> NewRequest:
    """The request as `Adapters.seat` has it, or as it is without a name."""
    return need_adapters(adapters).seat(request, name) if name else request


def start_adapters(
    config: EngineConfig, spec: ModelSpec, slots: AnySlots, put: Put, startup: Startup
) -> Adapters:
    """The adapters of an engine, with those that it starts with loaded. ConfigError when any cannot be."""
    rank = config.max_lora_rank or MAX_RANK
    adapters = Adapters(
        slots, spec, max_rank=rank, put=put, fixed=config.max_loras is None,
        prove=prove_adapter if config.deterministic else None,
    )  # fmt: skip
    with startup.phase("adapters"):
        try:
            load_all(adapters, config.lora)
        except BaseException:
            adapters.close()
            raise
    each = format_bytes(slots_bytes(config, spec, slots) // slots.num_slots)
    startup.choose("adapters", slots.num_slots, f"slots of {each}, for ranks up to {rank}")
    return adapters


def slots_bytes(config: EngineConfig, spec: ModelSpec, slots: AnySlots | None) -> int:
    """What all slots take when they are full; on a GPU they have it already."""
    if slots is None:
        return 0
    each = slot_bytes(
        spec, config.max_lora_rank or MAX_RANK, element_bytes=slots.dtype.itemsize,
        stacked=isinstance(slots, StackedSlots),
    )  # fmt: skip
    return slots.num_slots * each


def load_all(adapters: Adapters, given: Sequence[tuple[str, str]]) -> None:
    """Load what an engine starts with. ConfigError, and nothing runs, when any cannot be."""
    for name, path in given:
        try:
            adapters.load((b"", name), name, path)
        except RequestError as error:
            raise ConfigError(f"--lora {name}={path}: {error}") from None
    paths = dict(given)
    while len(adapters):
        adapters.wait()
        for loaded in adapters.take():
            _, name = loaded.key
            if isinstance(loaded.error, RequestError):
                raise ConfigError(f"--lora {name}={paths[name]}: {loaded.error}")
            if loaded.error is not None:
                raise loaded.error


def count_slots(config: EngineConfig) -> int:
    """How many adapters an engine is to have room for. ConfigError for more names than that, or one twice."""
    names, most = [name for name, _ in config.lora], config.max_loras
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"--lora {name} is given twice: each adapter needs a name of its own")
    if most is not None and most < len(names):
        raise ConfigError(f"--max-loras {most} has no room for the {len(names)} adapters of --lora")
    if not names and not most:
        if config.max_lora_rank is not None:
            raise ConfigError("--max-lora-rank needs --lora or --max-loras")
        return 0
    return len(names) if most is None else most


def open_slots(
    config: EngineConfig, spec: ModelSpec, dtype: torch.dtype, device: torch.device, gpu: Gpu | None
) -> AnySlots | None:
    """Slots for as many, None for none; a GPU's take their memory here. dtype: of its activations.
    ConfigError where it has too little, or no kernels of ours to run by."""
    num = count_slots(config)
    if not num or device.type == "cpu":
        return AdapterSlots(num) if num else None
    if gpu is None:
        raise ConfigError(
            "adapters need the Triton kernels on a GPU: install ridgeline[gpu], use --device cpu, or leave "
            "out --lora and --max-loras"
        )
    shapes = seat_shapes(spec, config.max_lora_rank or MAX_RANK)
    try:
        return StackedSlots(num, shapes, dtype=dtype, device=device)
    except torch.OutOfMemoryError:
        free, _ = torch.cuda.mem_get_info(device)
        raise ConfigError(
            f"slots for {num} adapters do not fit: {format_bytes(free)} of the GPU are left; lower "
            "--max-loras or --max-lora-rank"
        ) from None
