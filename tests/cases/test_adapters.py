"""C-17: adapters, the base model and salts never share a cached prefix, also when another adapter is loaded
under a name; and neighbours: what is asked while an adapter goes, vectors, chats, what cannot be loaded."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file, save_file

from ridgeline.engine.llm import LLM
from ridgeline.engine.outputs import CompletionOutput
from ridgeline.models.checkpoint import open_checkpoint
from ridgeline.spec.sampling import SamplingParams
from tests.adapters.made import adapter_folder
from tests.cases.near import ASK, NEAR_NATS, same
from tests.server.process import Server, serving
from tests.server.tiny import tiny_folder

PROMPT = [(7 * i) % 250 for i in range(200)]
MOST = 200 // 16 * 16
LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"


class Scene:
    """A server under test, and an engine beside it that keeps nothing, so that each of its answers is a fresh
    server's."""

    def __init__(self, server: Server, fresh: LLM, folders: dict[str, Path]) -> None:
        self.server, self.fresh, self.folders = server, fresh, folders

    def ask(self, model: str | None, prompt: list[int] = PROMPT, **fields: Any) -> Any:
        return self.server.complete(prompt, model=model, max_tokens=12, ignore_eos=True, **fields, **ASK)

    def want(self, model: str, prompt: list[int] = PROMPT) -> CompletionOutput:
        """model: the name by which the fresh engine has the same adapter."""
        params = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True, logprobs=5)
        [output] = self.fresh.generate(prompt, params, adapter="" if model == "base" else model)
        return output.outputs[0]

    def load(self, name: str, folder: str, **fields: Any) -> Any:
        answer = self.server.post(LOAD, {"lora_name": name, "lora_path": str(self.folders[folder]), **fields})
        assert answer.status_code == 200, answer.text
        return answer.json()

    def unload(self, name: str) -> None:
        answer = self.server.post(UNLOAD, {"lora_name": name})
        assert answer.status_code == 200 and answer.json()["deleted"], answer.text


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    root = tmp_path_factory.mktemp("adapted")
    (root / "base").mkdir()
    folder = tiny_folder(root / "base")
    spec = open_checkpoint(folder, load_format="dummy").spec
    folders = {name: adapter_folder(root / name, spec, seed=seed, rank=2 + seed, strength=40.0)
               for seed, name in enumerate("abcd")}
    words = (str(folder), "--load-format", "dummy", "--dtype", "float32", "--kv-cache-bytes", "8MB",
             "--served-model-name", "base", "--max-loras", "3")
    given = ("--lora", f"a={folders['a']}", "--lora", f"b={folders['b']}")
    with (serving(*words, *given) as server,
          LLM(str(folder), load_format="dummy", dtype="float32", kv_cache_bytes=8_000_000, threads=1,
              prefix_caching=False, progress=False,
              lora=[(name, str(folders[name])) for name in "abc"]) as fresh):
        yield Scene(server, fresh, folders)


def agrees(answer: Any, want: CompletionOutput) -> bool:
    """The same tokens up to a near tie, by the fresh engine's numbers."""
    for place, (left, right) in enumerate(zip(text(answer), want.token_ids, strict=True)):
        if left != right:
            tops = (want.logprobs or [])[place]
            return left in tops and tops[right].logprob - tops[left].logprob <= NEAR_NATS
    return True


def cached(answer: Any) -> int:
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def text(answer: Any) -> list[int]:
    return answer["choices"][0]["token_ids"]


def test_c17_adapters_and_the_base_share_nothing(scene: Scene) -> None:
    wants = {model: scene.want(model) for model in ("a", "b", "base")}
    assert len({tuple(want.token_ids) for want in wants.values()}) == 3, "adapters too weak to tell anything"
    for turn in range(2):
        for model, want in wants.items():
            answer = scene.ask(model)
            assert agrees(answer, want)
            assert answer["model"] == model
            assert cached(answer) >= MOST - 16 if turn else cached(answer) == 0, (model, turn)
    scene.server.idle()


def test_c17_another_adapter_under_the_same_name(scene: Scene) -> None:
    """By taking the first away, and in its place. Back again, the first one's prefix is right too."""
    scene.ask("a")
    scene.unload("a")
    assert scene.server.refused("/v1/completions", {"prompt": PROMPT, "model": "a"}, 404)["param"] == "model"
    card = scene.load("a", "c")
    assert card["id"] == "a" and card["parent"] == "base" and card["root"] == str(scene.folders["c"])
    answer = scene.ask("a")
    assert agrees(answer, scene.want("c"))
    assert cached(answer) == 0
    scene.load("a", "a", load_inplace=True)
    assert agrees(scene.ask("a"), scene.want("a"))
    scene.server.idle()


def test_c17_salts(scene: Scene) -> None:
    prompt = [9, *PROMPT[1:]]
    for model in ("base", "a"):
        want = scene.want(model, prompt)
        for salt, reuses in (("x", False), ("y", False), ("x", True)):
            answer = scene.ask(model, prompt, cache_salt=salt)
            assert agrees(answer, want)
            assert bool(cached(answer)) is reuses, (model, salt)
    for salt in ("", 7, ["x"], "x\0"):
        body = {"prompt": PROMPT, "cache_salt": salt}
        assert scene.server.refused("/v1/completions", body)["param"] == "cache_salt"


def test_all_at_once(scene: Scene) -> None:
    """Rows of the base and of two adapters in the same steps, three times over."""
    prompt = [11, *PROMPT[1:]]
    models = ["a", "base", "b"] * 3
    with ThreadPoolExecutor(len(models)) as pool:
        answers = list(pool.map(lambda model: scene.ask(model, prompt), models))
    for model, answer in zip(models, answers, strict=True):
        assert agrees(answer, scene.want(model, prompt))
    scene.server.idle()


def test_what_runs_goes_on_when_its_adapter_is_unloaded(scene: Scene) -> None:
    """The stream ends as it would have; the slot is free then, and whoever waited for it is served."""
    scene.load("busy", "d")
    body = {"prompt": PROMPT[:9], "model": "busy", "max_tokens": 160, "ignore_eos": True,
            "return_token_ids": True}
    whole = text(scene.server.complete(**body))
    with ThreadPoolExecutor(1) as pool:
        going = pool.submit(scene.server.events, "/v1/completions", body)
        while not scene.server.metrics()["ridgeline:num_requests_running"]:
            assert not going.done()
        scene.unload("busy")
        scene.load("later", "b")
        choices = [choice for event in going.result() for choice in event["choices"]]
    streamed = [token for choice in choices for token in choice["token_ids"]]
    assert streamed == whole
    assert agrees(scene.ask("later"), scene.want("b"))
    scene.unload("later")
    scene.server.idle()


def test_every_endpoint_knows_the_names(scene: Scene) -> None:
    listed = scene.server.http.get("/v1/models").json()["data"]
    assert listed[0]["id"] == "base"
    assert {card["id"]: card["parent"] for card in listed} == {"base": None, "a": "base", "b": "base"}
    assert scene.server.http.get("/v1/models/b").json()["parent"] == "base"
    vectors, texts = {}, set()
    for model in ("base", "a", "b"):
        answer = scene.server.post("/v1/embeddings", {"input": PROMPT, "model": model}).json()
        assert answer["model"] == model
        vectors[model] = tuple(answer["data"][0]["embedding"])
        chat = scene.server.chat("Say something", model=model, max_tokens=8)
        assert chat["model"] == model
        texts.add(chat["choices"][0]["message"]["content"])
        message = scene.server.post("/v1/messages", {
            "model": model, "max_tokens": 4, "messages": [{"role": "user", "content": "Hi"}]}).json()
        assert message["model"] == model
    assert len(set(vectors.values())) == 3 and len(texts) == 3


def test_what_cannot_be_loaded_is_refused_and_the_rest_goes_on(scene: Scene, tmp_path: Path) -> None:
    broken = {"cut": None, "dora": {"use_dora": True}, "rank": {"r": 64}}
    source = scene.folders["a"]
    for name, fields in broken.items():
        folder = tmp_path / name
        folder.mkdir()
        config = json.loads((source / "adapter_config.json").read_text())
        (folder / "adapter_config.json").write_text(json.dumps(config | (fields or {})))
        raw = (source / "adapter_model.safetensors").read_bytes()
        (folder / "adapter_model.safetensors").write_bytes(raw if fields else raw[:-100])
    (tmp_path / "head").mkdir()
    tensors = load_file(source / "adapter_model.safetensors")
    renamed = {name.replace("model.layers.0.self_attn.q_proj", "lm_head"): t for name, t in tensors.items()}
    save_file(renamed, tmp_path / "head/adapter_model.safetensors")
    (tmp_path / "head/adapter_config.json").write_text((source / "adapter_config.json").read_text())
    said = {"cut": "incomplete", "dora": "DoRA", "rank": "need [64", "head": "lm_head",
            "none": "adapter_config"}
    for name, words in said.items():
        error = scene.server.refused(LOAD, {"lora_name": name, "lora_path": str(tmp_path / name)})
        assert error["param"] == "lora_path" and words in error["message"], error
    path = {"lora_path": str(source)}
    for body in ({"lora_name": "base", **path}, {"lora_name": "a", **path}, {"lora_name": "", **path},
                 {"lora_name": "x\ny", **path}, {"lora_name": "x"}, {"lora_name": "x", "rank": 3, **path}):
        scene.server.refused(LOAD, body)
    scene.load("last", "c")
    error = scene.server.refused(LOAD, {"lora_name": "more", "lora_path": str(source)})
    assert "--max-loras" in error["message"]
    scene.unload("last")
    scene.server.refused(UNLOAD, {"lora_name": "last"}, 404)
    assert agrees(scene.ask("b"), scene.want("b"))
    scene.server.probe()


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_c17_literally(tmp_path: Path) -> None:
    """The default model, quantized as it is, and a fresh server for each answer."""
    from ridgeline.models.resolve import open_model

    spec = open_model(None).spec
    folders = {name: adapter_folder(tmp_path / name, spec, seed=seed, rank=8, strength=2.0)
               for seed, name in enumerate("ac")}
    prompt = [(11 * i) % 40000 + 300 for i in range(200)]
    body: dict[str, Any] = {"prompt": prompt, "max_tokens": 24, "ignore_eos": True, **ASK}

    def fresh(name: str | None) -> Any:
        words = ("--lora", f"it={folders[name]}") if name else ()
        with serving(*words) as server:
            return server.complete(model="it" if name else None, **body)

    wants = {name: fresh(name) for name in ("a", "c", None)}
    assert len({tuple(text(want)) for want in wants.values()}) == 3
    with serving("--lora", f"a={folders['a']}", "--max-loras", "1") as server:
        scene = Scene(server, None, folders)  # type: ignore[arg-type]
        for name in ("a", None):
            same(server.complete(model=name, **body), wants[name])
        scene.unload("a")
        scene.load("a", "c")
        answer = server.complete(model="a", **body)
        same(answer, wants["c"])
        assert cached(answer) == 0
