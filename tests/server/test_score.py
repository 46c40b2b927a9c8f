"""Protects /v1/score: what completions with echo say of the same texts, computed once for each context."""

from typing import Any

import pytest

from ridgeline.api.score import score
from ridgeline.base.errors import RequestError
from tests.server.fake import fake_api
from tests.server.process import Server

pytestmark = pytest.mark.anyio
CONTEXT = "Lisbon lies where the river Tagus meets the Atlantic, and it is the capital of the country called"
ENDINGS = [" Portugal.", " the moon", "s"]


def _pairs(context: str, endings: list[str]) -> list[dict[str, str]]:
    return [{"context": context, "continuation": ending} for ending in endings]


def test_scores_are_those_of_an_echoed_prompt(server: Server) -> None:
    """Token by token, for pairs that share a context, pairs that do not, and endings that change the
    context's last token; the context is read from the cache by all but the first."""
    pairs = [*_pairs(CONTEXT, ENDINGS), *_pairs("2 + 2 =", [" 4", " 5"])]
    body = {"pairs": pairs, "cache_salt": "scores"}
    answer: Any = server.post("/v1/score", body).json()
    assert [one["index"] for one in answer["data"]] == list(range(len(pairs)))
    sizes = []
    for pair, one in zip(pairs, answer["data"], strict=True):
        told = server.complete(pair["context"] + pair["continuation"], max_tokens=0, echo=True, logprobs=1,
                               return_token_ids=True)["choices"][0]  # fmt: skip
        found, begin = told["logprobs"], len(told["prompt_token_ids"]) - len(one["token_ids"])
        sizes.append(len(told["prompt_token_ids"]))
        assert told["prompt_token_ids"][begin:] == one["token_ids"]
        assert "".join(found["tokens"][begin:]).endswith(pair["continuation"])
        assert found["token_logprobs"][begin:] == pytest.approx(one["token_logprobs"], abs=1e-3)
        assert one["logprob"] == pytest.approx(sum(one["token_logprobs"]))
        best = [max(top.values()) for top in found["top_logprobs"][begin:]]
        assert one["is_greedy"] == (best == found["token_logprobs"][begin:])
    assert answer["usage"]["prompt_tokens"] == sum(sizes)
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] >= min(sizes[:3]) - 2
    scores = [one["logprob"] for one in answer["data"]]
    assert scores[0] > scores[1] and scores[3] > scores[4]


def test_token_ids_and_refusals(server: Server) -> None:
    ids = server.post("/tokenize", {"prompt": "2 + 2 = 4"}).json()["tokens"]
    pair = {"context": ids[:-1], "continuation": ids[-1:]}
    assert server.post("/v1/score", {"pairs": [pair]}).json()["data"][0]["token_ids"] == ids[-1:]
    for change, param in (
        ({"continuation": []}, "pairs[0].continuation"), ({"context": []}, "pairs[0].context"),
        ({"context": "2 + 2 ="}, "pairs[0]"), ({"continuation": [99999999]}, "pairs"),
        ({"context": ids * 2000}, "pairs[0]"), ({"contxt": "a"}, "pairs[0].contxt"),
    ):  # fmt: skip
        refused = server.refused("/v1/score", {"pairs": [pair | change]}, 400)
        assert refused["param"].removesuffix("[...]").replace("[...]", "[0]") == param, refused
    assert server.refused("/v1/score", {"pairs": []}, 400)["param"] == "pairs"


async def test_others_of_a_context_start_when_the_first_has_ended() -> None:
    """And a failure of the first ends all."""
    api, engine = fake_api()
    body = b'{"pairs": [%b]}' % b", ".join(
        b'{"context": "%b", "continuation": "x%d"}' % (context, number)
        for number, context in enumerate((b"a", b"b", b"a", b"b", b"a"))
    )  # fmt: skip
    await score(api, body)
    order = [bytes(engine.tokenizer.decode(ids), "utf-8")[:1] for ids, _ in engine.submitted]
    assert sorted(order[:2]) == [b"a", b"b"] and sorted(order[2:]) == [b"a", b"a", b"b"]
    engine.submitted.clear()
    engine.fail_after = 0
    with pytest.raises(RequestError, match="could not go on"):
        await score(api, body)
    assert len(engine.submitted) == 2 and not engine.open
