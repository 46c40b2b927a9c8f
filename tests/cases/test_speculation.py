"""C-20: n-gram drafting on and off says the same, also where the answer has a structure."""

from pathlib import Path
from typing import Any

import pytest

from tests.cases.near import ASK, same
from tests.server.process import Server, serving
from tests.server.tiny import tiny_folder

SCHEMA = {"type": "object", "properties": {"lamps": {"type": "array", "items": {"enum": ["lamp", "lump"]},
          "minItems": 5, "maxItems": 8}}, "required": ["lamps"], "additionalProperties": False}  # fmt: skip
CODE = "for i in range(3):\n    total += values[i]\nfor i in range(3):\n    total += "
PROSE = "The sea was calm that night, and nobody spoke of the storm."


def test_c20_drafts_change_nothing(small: Server, tmp_path: Path) -> None:
    """The same tokens with and without a schema, one log-probability for each, near-tie rule."""
    plain_text, shaped = dict[str, Any](), {"guided_json": SCHEMA}
    few = {"logit_bias": {str(token): 90 for token in range(65, 69)}}  # which are soon said again
    asked = [("lamp " * 48, plain_text), ("lamp " * 48, shaped), (CODE, few), (PROSE, plain_text)]
    bodies = [{"prompt": prompt, "max_tokens": 96, **ASK, **shape} for prompt, shape in asked]
    folder = str(tiny_folder(tmp_path))
    with serving(folder, "--load-format", "dummy", "--kv-cache-bytes", "8MB", "--speculate", "ngram") as fast:
        for body in bodies:
            plain, drafted = small.complete(**body), fast.complete(**body)
            if not same(plain, drafted):
                continue
            one, other = plain["choices"][0], drafted["choices"][0]
            assert one["text"] == other["text"] and plain["usage"] == drafted["usage"]
            num_shown = drafted["usage"]["completion_tokens"] - (other["finish_reason"] == "stop")
            assert len(other["logprobs"]["token_logprobs"]) == num_shown, "the end has no text to show"
            assert other["logprobs"]["token_logprobs"] == pytest.approx(
                one["logprobs"]["token_logprobs"], abs=0.02)  # fmt: skip
        assert fast.metrics()["ridgeline:spec_decode_num_accepted_tokens_total"] > 20
        fast.idle()
