"""The closed forms of inference, one function a formula: the nominal reading.

Nominal: P counts all parameters, windows hide nothing, every prompt position meets every matrix. The account
(`ledger.account`) is the exact reading: its decode of Llama-3-8B reads 7.50e9 parameters, not 8.03e9: an
embedding is a gather, and its prompt projects its last position only. Symbols: P parameters, L layers, d =
n_q * head_dim, N context, B sequences, s_w and s_c bytes of a weight and of a cached element, beta bytes/s.

Sources, by section: [M] "The Mechanics of LLM Inference"; [I] "Why inference matters more than ever", which
follows the inference chapter of "How to Scale Your Model".
"""

import math
from dataclasses import dataclass

from ridgeline.blocks.attention.spec import AttentionSpec
from ridgeline.spec.cache import CacheSpec, Paged, Window
from ridgeline.spec.cost import PAIRS
from ridgeline.spec.model import ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A model as the closed forms see it.

    num_params: P, all of them. width: d, the mean over num_layers where they differ (an expanded key and
    value's mean of latent attention). num_kv_heads: by which a cache can be cut; 1 for latents. kv_elements:
    cached numbers a token, over all layers: 2 L n_kv head_dim, or L (d_c + d_R) of latents.
    """

    num_params: float
    num_layers: int
    width: float
    num_kv_heads: int
    kv_elements: float
    hidden_size: int
    vocab_size: int

    @property
    def group(self) -> float:
        """g = n_q / n_kv of attention with plain keys and values."""
        return 2 * self.num_layers * self.width / self.kv_elements


def _growth(kept: CacheSpec) -> float:
    """Elements that one more token adds, were no window to drop another."""
    if isinstance(kept, Paged):
        return kept.bytes_per_entry / kept.tokens_per_entry
    return kept.bytes_per_token if isinstance(kept, Window) else 0.0


def shape_of(spec: ModelSpec) -> Shape:
    """The shape of a described model: FLOPs of a pair and elements of a token as its blocks state them."""
    pair_flops = sum(many * value for block, many in spec.blocks() for cost in block.cost()
                     for (name, _), value in cost.flops if name == PAIRS)
    attention = [block for block, _ in spec.blocks() if isinstance(block, AttentionSpec)]
    return Shape(num_params=spec.num_params, num_layers=len(spec.layers),
                 width=pair_flops / (4 * len(spec.layers)), hidden_size=spec.hidden_size,
                 num_kv_heads=max((block.num_kv_heads for block in attention), default=1),
                 kv_elements=sum(_growth(kept) for layer in spec.cache(1) for kept in layer),
                 vocab_size=spec.vocab_size)


# Intensity and the ridge

def linear_intensity(rows: float, d_in: int, d_out: int, element_bytes: float) -> float:
    """2NDF / s(ND + DF + NF) FLOP/byte: one matrix, its input and its output. [M] Prefill and decode."""
    moved = rows * d_in + d_in * d_out + rows * d_out
    return 2.0 * rows * d_in * d_out / (element_bytes * moved)


def attention_intensity(keys: float, queries: float) -> float:
    """ST / (S + T) FLOP/byte: attention in bf16 with the traffic of Q and O. [I] The KV cache."""
    return keys * queries / (keys + queries)


def decode_attention_intensity(group: float, cache_bytes: float) -> float:
    """2g / s_c FLOP/byte at every batch. [M] MHA, MQA, GQA, MLA."""
    return 2.0 * group / cache_bytes


def ridge_batch(balance: float, weight_bytes: float) -> float:
    """B* = s_w I* / 2: rows at which weights once read are worth their arithmetic. balance: I* = pi / beta.
    [M] What batching actually buys."""
    return weight_bytes * balance / 2


# Work of the two phases

def prefill_flops(shape: Shape, num_tokens: float) -> float:
    """2PN + 2LN^2d, halved by causality. [M] Prefill and decode."""
    return 2 * shape.num_params * num_tokens + 2 * shape.num_layers * num_tokens**2 * shape.width


def decode_flops(shape: Shape, context: float) -> float:
    """2P + 4LNd of one token. [M] Prefill and decode."""
    return 2 * shape.num_params + 4 * shape.num_layers * context * shape.width


def quadratic_tokens(params: float, shape: Shape) -> float:
    """P / (Ld): the prompt whose attention costs as much as its linear layers. params: 6.98e9 of Llama-3-8B
    without embeddings gives the source's 53,000; all of them 61,300. [M] Prefill and decode."""
    return params / (shape.num_layers * shape.width)


def uncached_flops(params: float, prompt: float, output: float) -> float:
    """2P (N_o N_p + N_o^2 / 2), linear layers only. [M] Deriving the KV cache."""
    return 2 * params * (output * prompt + output**2 / 2)


def cached_flops(params: float, prompt: float, output: float) -> float:
    """2P (N_p + N_o), linear layers only. [M] Deriving the KV cache."""
    return 2 * params * (prompt + output)


def unpack_flops(params: float, num_tokens: float, tile_rows: int) -> float:
    """2P for each tile of rows: a zero point and a scale a weight, beside the matrix units, each time a tile
    of weights is brought to one of rows. What weight-only formats add to a prompt. [M] Quantization as a
    ledger edit."""
    return 2 * params * num_tokens / tile_rows


# Bytes

def kv_bytes(shape: Shape, context: float, cache_bytes: float) -> float:
    """M_KV = 2 N L n_kv head_dim s of one sequence. [M] The KV memory formula."""
    return shape.kv_elements * cache_bytes * context


def step_bytes(shape: Shape, batch: float, context: float, weight_bytes: float, cache_bytes: float) -> float:
    """s_w P + B M_KV. [M] Why decode is bandwidth-bound."""
    return weight_bytes * shape.num_params + batch * kv_bytes(shape, context, cache_bytes)


def logits_bytes(rows: float, vocab_size: int, element_bytes: float = 4) -> float:
    """B V s; rows are the positions that are projected. [M] The inference memory ledger."""
    return rows * vocab_size * element_bytes


def crossover_tokens(shape: Shape, weight_bytes: float, cache_bytes: float) -> float:
    """(B N)x = P s_w / (2 L n_kv head_dim s_c): cached tokens that weigh as much as the weights; over a
    context, B_cross. [M] The inference memory ledger; What batching actually buys."""
    return weight_bytes * shape.num_params / (shape.kv_elements * cache_bytes)


def max_sequences(memory_bytes: float, weights: float, sequence_bytes: float, workspace: float = 0) -> int:
    """B_max: whole sequences beside the weights, 0 when those do not fit. [M] The KV memory formula, Lab 1
    (no workspace); What batching actually buys, Lab 3 (2 GB of it)."""
    return max(math.floor((memory_bytes - weights - workspace) / sequence_bytes), 0)


# Batches

def intensity(shape: Shape, batch: float, context: float, weight_bytes: float, cache_bytes: float) -> float:
    """I(B) = B (2P + 4LNd) / (s_w P + B M_KV), FLOP/byte. [M] What batching actually buys."""
    return batch * decode_flops(shape, context) / step_bytes(shape, batch, context, weight_bytes, cache_bytes)


def intensity_ceiling(shape: Shape, context: float, cache_bytes: float) -> float:
    """2P / M_KV + 2g / s_c, what no batch passes. [M] What batching actually buys."""
    return decode_flops(shape, context) / kv_bytes(shape, context, cache_bytes)


def throughput_ceiling(bytes_per_s: float, shape: Shape, context: float, cache_bytes: float) -> float:
    """beta / M_KV, tokens/s of all sequences together. [M] What batching actually buys, Table 4."""
    return bytes_per_s / kv_bytes(shape, context, cache_bytes)


def in_flight(rate_per_s: float, seconds: float) -> float:
    """Little's law. [M] Metrics from first principles."""
    return rate_per_s * seconds


def end_to_end(ttft_s: float, tpot_s: float, output: float) -> float:
    """TTFT + (N_o - 1) TPOT, seconds. [M] Metrics from first principles."""
    return ttft_s + (output - 1) * tpot_s


# Speculation

def expected_tokens(acceptance: float, drafts: int) -> float:
    """(1 - a^(k+1)) / (1 - a): tokens a verification of k drafts yields. [M] Speculative decoding."""
    return drafts + 1.0 if acceptance == 1 else (1 - acceptance ** (drafts + 1)) / (1 - acceptance)


def speculation_gain(acceptance: float, drafts: int, draft_cost: float) -> float:
    """E[tokens] / (1 + k c); c: a draft's cost in target steps. [M] Speculative decoding."""
    return expected_tokens(acceptance, drafts) / (1 + drafts * draft_cost)


def best_drafts(acceptance: float, draft_cost: float, most: int = 64) -> int:
    """The number of drafts with the largest gain; 0 where none pays."""
    return max(range(most + 1), key=lambda drafts: speculation_gain(acceptance, drafts, draft_cost))


# Several devices

def kv_shards(shape: Shape, tensor_parallel: int) -> int:
    """Parts a cache is cut into: no more than there are K and V heads. [M] Distributed inference."""
    return min(tensor_parallel, shape.num_kv_heads)


def kv_copies(shape: Shape, tensor_parallel: int) -> float:
    """Devices that hold the same K and V head. [M] Distributed inference."""
    return tensor_parallel / kv_shards(shape, tensor_parallel)


def num_collectives(shape: Shape, tensor_parallel: int) -> int:
    """2L a step, none alone: after attention and after the FFN. [M] Distributed inference."""
    return 2 * shape.num_layers if tensor_parallel > 1 else 0


def payload_bytes(shape: Shape, rows: float, element_bytes: float = 2) -> float:
    """B d_model s of one all-reduce. [M] Distributed inference."""
    return rows * shape.hidden_size * element_bytes


def device_bytes(shape: Shape, batch: float, context: float, weight_bytes: float, cache_bytes: float,
                 tensor_parallel: int = 1) -> float:
    """What one of n devices holds and reads a step: s_w P / n + B M_KV / min(n, n_kv)."""
    return (weight_bytes * shape.num_params / tensor_parallel
            + batch * kv_bytes(shape, context, cache_bytes) / kv_shards(shape, tensor_parallel))


def step_seconds(shape: Shape, batch: float, context: float, weight_bytes: float, cache_bytes: float,
                 bytes_per_s: float, tensor_parallel: int = 1, collective_s: float = 0) -> float:
    """(s_w P + B M_KV) / (n beta) + 2L t, with the cache cut by n_kv at most. [M] Why decode is
    bandwidth-bound; Distributed inference."""
    held = device_bytes(shape, batch, context, weight_bytes, cache_bytes, tensor_parallel)
    return held / bytes_per_s + num_collectives(shape, tensor_parallel) * collective_s


# Pictures

def visual_tokens(patches: float, pooling: int) -> float:
    """Patches over the pooling ratio: the area alone. A tiler that pools a grid of odd side rounds up: 27 x
    27 by 2 x 2 is 14 x 14, see `pooled_tokens`. [M] Vision-language inference."""
    return patches / pooling


def pooled_tokens(side: int, pooling: int) -> int:
    """Tokens of one tile of side x side patches, pooled by squares as tilers do."""
    return math.ceil(side / math.isqrt(pooling)) ** 2


def encoder_flops(params: float, num_layers: int, width: int, tile_patches: int, num_tiles: int) -> float:
    """2 P N + 4 L n^2 d a tile, bidirectional. [M] Vision-language inference, Lab 4."""
    return num_tiles * (2.0 * params * tile_patches + 4.0 * num_layers * tile_patches**2 * width)


def padded_waste(tiles: tuple[int, ...], padded_to: int) -> float:
    """Share of a ragged batch of tiles that is padding. [M] Vision-language inference."""
    return 1 - sum(tiles) / (len(tiles) * padded_to)


# Scheduling

def slot_utilisation(outputs: tuple[int, ...]) -> float:
    """Sum of outputs / (B * longest): a static batch's used slots. [M] The scheduling problem."""
    return sum(outputs) / (len(outputs) * max(outputs))


def waiting_s(rate: float, service_s: float) -> float:
    """Mean wait for the prompts ahead: rho s / (2 (1 - rho)) of Poisson arrivals at one prefill server
    (Pollaczek and Khinchine, constant service); no wait is known where it never catches up."""
    load = rate * service_s
    return load * service_s / (2 * (1 - load)) if load < 1 else float("inf")
