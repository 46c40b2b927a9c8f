"""Protects against what our own OpenAPI document allows and forbids: schemathesis makes requests from it,
right ones and wrong ones, and none may be answered with a failure of ours. In `make soak` (extra `fuzz`).
"""

import asyncio
import json
from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.faults.client import held_bytes
from tests.faults.soak import fill
from tests.faults.test_load import FLAT, port, processes, settle
from tests.server.process import Server, launch
from tests.server.tiny import tiny_folder

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3600)]
TURNS, EXAMPLES = 3, 150  # of an operation, a turn


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tiny_folder(tmp_path_factory.mktemp("tiny"), max_position_embeddings=128)
    started = launch(str(folder), "--load-format", "dummy", "--kv-cache-bytes", "2MB")
    yield started
    assert started.stop() == 0, "\n".join(started.output)


def test_whatever_the_document_says_is_answered_or_refused(server: Server) -> None:
    import schemathesis

    schema = schemathesis.openapi.from_dict(server.http.get("/openapi.json").json())
    found = Counter[int]()
    held = []
    asyncio.run(fill(port(server)))
    _touch_the_cache(server)
    for _ in range(TURNS):
        for result in schema.get_all_operations():
            _try(server, result.ok(), found, EXAMPLES)
        settle(server)
        held.append([*map(held_bytes, processes(server))])
        print(f"{found.total()} requests: {dict(found)}, bytes held by process: {held[-1]}", flush=True)
    assert all(last <= before * (1 + FLAT) for before, last in zip(*held[-2:], strict=True)), held


def _touch_the_cache(server: Server) -> None:
    """Its pages become memory when they are first written, which would be taken for growth."""
    for number in range(2 * int(server.metrics()["ridgeline:kv_blocks_total"]) // 7):
        assert server.post("/v1/completions", {"prompt": f"{number:04} " * 24, "max_tokens": 1}).is_success
    assert server.metrics()["ridgeline:kv_blocks|free"] < 8, "less than one more prompt would take"


def _try(server: Server, operation: object, found: Counter[int], examples: int) -> None:
    from schemathesis import GenerationMode

    modes = [operation.as_strategy(generation_mode=mode)  # type: ignore[attr-defined]
             for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)]

    @settings(max_examples=examples, deadline=None, database=None, phases=[Phase.generate],
              suppress_health_check=list(HealthCheck))
    @given(case=st.one_of(modes))
    def one(case: object) -> None:
        answer = case.call(base_url=server.url, timeout=60)  # type: ignore[attr-defined]
        found[answer.status_code] += 1
        assert answer.status_code < 500, (case, answer.content[:300])
        if answer.status_code >= 400:
            assert json.loads(answer.content)["error"]["message"], (case, answer.content[:300])

    one()
