"""How the engine that recorded a trace was put together, as far as its plans hang on it: what its header says
for a replay, and the scheduler that is made of that again."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ridgeline.base.errors import ConfigError
from ridgeline.kv.manager import KVManager
from ridgeline.schedule.executor import Capacity
from ridgeline.schedule.policies.policy import Needs
from ridgeline.schedule.policies.table import make_policy
from ridgeline.schedule.pressure import Pressure
from ridgeline.schedule.scheduler import Scheduler
from ridgeline.schedule.speculate import Shape
from ridgeline.schedule.targets import Targets
from ridgeline.spec.cache import CacheGroup, CacheLayout, Paged, State, Window

_KINDS = {kind.__name__: kind for kind in (Paged, Window, State)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """max_in_flight: steps begun at once. snapshot_stride, snapshot_bytes: see `KVManager`."""

    capacity: Capacity
    policy: str
    targets: Targets
    overload: str
    prefix_caching: bool
    cache: bool
    watermark_bytes: int
    snapshot_stride: int
    snapshot_bytes: int | None
    max_in_flight: int

    def as_json(self) -> dict[str, Any]:
        """Without what the layout says of bytes inside a page, which no plan hangs on."""
        values = asdict(self)
        layout = self.capacity.layout
        groups = [{**values["capacity"]["layout"]["groups"][i], "kind": group.kind.__name__, "regions": ()}
                  for i, group in enumerate(layout.groups)]
        values["capacity"]["layout"] = {"page_bytes": layout.page_bytes, "groups": groups}
        return values

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Origin":
        """ConfigError for what as_json() did not write."""
        try:
            capacity = dict(values["capacity"])
            groups = tuple(CacheGroup(**{**group, "kind": _KINDS[group["kind"]], "regions": ()})
                           for group in capacity["layout"]["groups"])
            layout = CacheLayout(page_bytes=capacity["layout"]["page_bytes"], groups=groups, source={})
            capacity |= {"layout": layout, "prompt_borders": tuple(capacity["prompt_borders"])}
            targets = Targets(**values["targets"])
            return cls(**{**values, "capacity": Capacity(**capacity), "targets": targets})
        except (KeyError, TypeError) as error:
            raise ConfigError(f"the trace's header does not say how its engine was made ({error}): record it "
                              "with this version") from None

    def scheduler(self, offers: Capacity, price: Callable[[Shape], float] | None) -> Scheduler:
        """The scheduler again, over what `offers` has, whose last token id ends a text. price: for a policy
        that predicts time. ConfigError where plans hang on what is not recorded."""
        if self.overload != "queue" and self.targets.ttft_s is not None:
            raise ConfigError(f"the trace was recorded with --overload {self.overload}: who is sent away "
                              "hangs on that machine's floors, which are not replayed")
        if offers.num_host_pages:
            raise ConfigError("the trace was recorded with --host-kv-bytes: what is copied hangs on that "
                              "machine's link, which is not replayed")
        if self.policy == "slo" and price is None:
            raise ConfigError("the trace was recorded under slo, which sizes steps by their prices: name the "
                              "MODEL and its --profile or --gpu, whose prices the replay takes")
        manager = KVManager(
            offers.layout, offers.num_pages, prefix_caching=self.prefix_caching and self.cache,
            snapshot_stride=self.snapshot_stride, snapshot_bytes=self.snapshot_bytes)
        return Scheduler(
            offers, manager, make_policy(self.policy, Needs(targets=self.targets, price=price)),
            max_num_batched_tokens=offers.max_step_tokens, max_num_seqs=offers.num_rows,
            eos_token_ids=(offers.vocab_size - 1,), cache=self.cache,
            pressure=Pressure(watermark_bytes=self.watermark_bytes))
