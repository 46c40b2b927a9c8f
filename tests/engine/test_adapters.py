"""Names, slots and who still uses them: nothing is replaced under a request that runs, nothing is lost."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from ridgeline.adapters.load import Adapter
from ridgeline.adapters.slots import AdapterSlots
from ridgeline.base.config import EngineConfig
from ridgeline.base.errors import ConfigError, RequestError
from ridgeline.engine.adapters import Adapters, Loaded, count_slots, load_all, open_slots
from ridgeline.engine.llm import LLM
from ridgeline.models.adapter import places
from ridgeline.models.checkpoint import open_checkpoint
from ridgeline.schedule.request import NewRequest
from ridgeline.spec.sampling import SamplingParams
from tests.adapters.made import adapter_folder
from tests.engine.tiny import tiny_folder
from tests.helpers import tiny_spec

SPEC = tiny_spec()
CLIENT = b"client"


class Scene:
    """Adapters over two slots, and what was put into them. folders: of adapters that differ."""

    def __init__(self, folders: dict[str, str]) -> None:
        self.folders = folders
        self.held: dict[int, Adapter | None] = {}
        slots = AdapterSlots(2)
        slots.seats |= {place.weight for place in places(SPEC).values()}
        self.adapters = Adapters(slots, SPEC, max_rank=4, put=self.held.__setitem__, fixed=False)

    def load(self, name: str, folder: str, *, replaces: bool = False) -> Loaded:
        self.adapters.load((CLIENT, name), name, self.folders.get(folder, folder), replaces=replaces)
        self.adapters.wait()
        [found] = self.adapters.take()
        assert found.key == (CLIENT, name)
        return found

    def seat(self, name: str, salt: str = "") -> NewRequest:
        prompt = np.arange(3, dtype=np.int32)
        new = NewRequest(id="r", prompt=prompt, params=SamplingParams(), cache_salt=salt)
        return self.adapters.seat(new, name)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    root = tmp_path_factory.mktemp("adapters")
    return {name: str(adapter_folder(root / name, SPEC, seed=seed, targets=("q_proj",)))
            for seed, name in enumerate("abc")}


@pytest.fixture
def scene(folders: dict[str, str]) -> Iterator[Scene]:
    made = Scene(folders)
    yield made
    made.adapters.close()


def test_salts_follow_what_is_computed(scene: Scene) -> None:
    """Another adapter of the same name shares nothing, the same one again does; a request's own salt
    counts."""
    scene.load("x", "a")
    first, salted = scene.seat("x").cache_salt, scene.seat("x", "s").cache_salt
    scene.load("x", "b", replaces=True)
    second = scene.seat("x").cache_salt
    scene.load("y", "a")
    assert len({first, salted, second}) == 3 and scene.seat("y").cache_salt == first


def test_a_slot_is_free_when_its_last_request_has_ended(scene: Scene) -> None:
    """An unloaded name is gone at once; whoever loads into the last slot waits for those who run."""
    scene.load("x", "a")
    scene.load("y", "b")
    slot, adapters = scene.seat("x").adapter, scene.adapters
    adapters.joined(slot)
    adapters.joined(slot)
    adapters.unload("x")
    with pytest.raises(RequestError, match="does not exist"):
        scene.seat("x")
    adapters.load((CLIENT, "z"), "z", scene.folders["c"])
    adapters.left(slot)
    assert scene.held[slot] is not None and len(adapters) == 1 and not adapters.take()
    with pytest.raises(RequestError, match="--max-loras"):
        adapters.load((CLIENT, "more"), "more", scene.folders["c"])
    adapters.left(slot)
    assert scene.held[slot] is None
    adapters.wait()
    [found] = adapters.take()
    assert found.error is None and scene.seat("z").adapter == slot and scene.held[slot] is not None


def test_a_replacement_takes_a_slot_of_its_own(scene: Scene) -> None:
    """Requests that run keep what they have; without a free slot it is refused, and nothing is lost."""
    scene.load("x", "a")
    old = scene.seat("x").adapter
    scene.adapters.joined(old)
    before = scene.held[old]
    assert scene.load("x", "b", replaces=True).error is None
    assert scene.seat("x").adapter != old and scene.held[old] is before
    with pytest.raises(RequestError, match="loaded as 'x' already"):
        scene.adapters.load((CLIENT, "x"), "x", scene.folders["c"])
    scene.adapters.left(old)
    scene.load("y", "c")
    with pytest.raises(RequestError, match="slots are taken"):
        scene.adapters.load((CLIENT, "x"), "x", scene.folders["c"], replaces=True)
    paths = {info["name"]: info["path"] for info in scene.adapters.infos}
    assert paths == {"x": scene.folders["b"], "y": scene.folders["c"]}


def test_what_cannot_be_read_leaves_its_slot(scene: Scene, tmp_path: Path) -> None:
    for _ in range(3):
        error = scene.load("x", str(tmp_path)).error
        assert isinstance(error, RequestError) and error.param == "lora_path"
        assert "adapter_config" in str(error)
    assert scene.load("x", "a").error is None and scene.load("y", "a").error is None
    for name in ("", "n" * 300):
        with pytest.raises(RequestError, match="1 to 256"):
            scene.adapters.load((CLIENT, "x"), name, scene.folders["a"])
    with pytest.raises(RequestError, match="no adapter"):
        scene.adapters.unload("nobody")


def test_what_a_start_refuses(scene: Scene, tmp_path: Path) -> None:
    """A name given twice, more names than slots, a GPU without our kernels, a folder that holds none."""
    twice, one = (("a", "x"), ("a", "y")), (("a", "x"),)
    for config, said in ((EngineConfig(lora=twice), "given twice"),
                         (EngineConfig(lora=one, max_loras=0), "no room"),
                         (EngineConfig(max_lora_rank=8), "needs --lora")):
        with pytest.raises(ConfigError, match=said):
            count_slots(config)
    cpu, cuda, three = torch.device("cpu"), torch.device("cuda"), EngineConfig(lora=one, max_loras=3)
    assert open_slots(EngineConfig(), SPEC, torch.bfloat16, cuda, None) is None
    with pytest.raises(ConfigError, match="need the Triton kernels"):
        open_slots(three, SPEC, torch.bfloat16, cuda, None)
    slots = open_slots(three, SPEC, torch.float32, cpu, None)
    assert slots is not None and slots.num_slots == 3
    with pytest.raises(ConfigError, match=r"--lora a=.*no adapter_config"):
        load_all(scene.adapters, [("a", str(tmp_path))])


def test_the_python_api(tmp_path: Path) -> None:
    """Adapters by name, beside one another and the base; loaded and unloaded between batches."""
    folder = tiny_folder(tmp_path / "model", tokenizer=False)
    spec = open_checkpoint(folder, load_format="dummy").spec
    a, b = (str(adapter_folder(tmp_path / name, spec, seed=seed, strength=40.0))
            for seed, name in enumerate("ab"))
    greedy = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)

    def says(name: str) -> tuple[int, ...]:
        return tuple(llm.generate([5, 6, 7], greedy, adapter=name)[0].outputs[0].token_ids)

    with LLM(str(folder), load_format="dummy", dtype="float32", threads=1, kv_cache_bytes=1 << 20,
             progress=False, lora=[("a", a)], max_loras=2) as llm:
        base, first = says(""), says("a")
        llm.load_adapter("b", b)
        assert len({base, first, says("b")}) == 3
        llm.unload_adapter("a")
        llm.load_adapter("a", b)
        assert says("a") == says("b") and says("") == base
        with pytest.raises(RequestError, match="'nobody' does not exist"):
            says("nobody")
        assert llm.info["startup"]["choices"]["adapters"]["value"] == 2
