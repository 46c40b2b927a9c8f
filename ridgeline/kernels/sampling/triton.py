"""Triton kernels of sampling: what vocabularies have to be read for is read once, then a few blocks again.

Legend: S rows of a step, V vocabulary, NB blocks of BLOCK tokens (NBP padded), PART blocks a program of the
first kernel, TB blocks a tile, NC blocks read at once by the second, K logprobs.

The first kernel passes over all logits and leaves of each block its highest logit, its highest noise and its
mass. The second, one program a row, finds everything else in the few blocks whose bounds say that they could
matter: the exact winner of the race in float64, the border of top_k by radix, the mass ahead of a token.

A row's tokens are in order of (logit down, id up): one int64, `order`, all different, 56 bits and positive.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

LOG2E = tl.constexpr(1.4426950408889634)
LOWEST = tl.constexpr(-(1 << 31))
LAST_ID = tl.constexpr((1 << 24) - 1)
NOTHING = tl.constexpr(-3.3e38)  # stands for a logit where there is none, finite in bfloat16 too
FORBIDDEN = tl.constexpr(-1e30)  # no other logit reaches it, and it is finite: see the CPU's grammars
MOST = tl.constexpr(3e38)  # of a row's best logit
SLACK = tl.constexpr(4e-3)  # far above the error of a score in float32
# columns of a request's numbers; see Requests
TEMPERATURE, TOP_P, LOG_MIN_P, REPETITION, PRESENCE, FREQUENCY = (tl.constexpr(i) for i in range(6))
TOP_K, MARKS, BIAS, STOPS_FROM, LAST_POSITION = (tl.constexpr(i) for i in range(5))
NUM_REALS, NUM_WHOLES = tl.constexpr(6), tl.constexpr(5)
# bits of a mark
COUNT, IN_PROMPT, IS_STOP = tl.constexpr((1 << 24) - 1), tl.constexpr(1 << 24), tl.constexpr(1 << 25)


@triton.jit
def _key(x):
    """int32 that grows with a float32; zeros are equal, NaN lies outside of the infinities."""
    i = (x + 0.0).to(tl.int32, bitcast=True)
    return i ^ ((i >> 31) & 0x7FFFFFFF)


@triton.jit
def _value(key):
    """The float32 of a key."""
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def _mix64(x):
    """splitmix64's finalizer."""
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB
    return x ^ (x >> 31)


@triton.jit
def _row_keys(seed, position):
    """(xor word, odd multiplier) of a request's seed and a position, uint32."""
    golden = tl.full((), 0x9E3779B97F4A7C15, tl.uint64)
    mixed = _mix64(_mix64(seed.to(tl.uint64, bitcast=True) + golden) + position.to(tl.uint64) * golden)
    return (mixed >> 32).to(tl.uint32), (mixed & 0xFFFFFFFF).to(tl.uint32) | 1


@triton.jit
def _bits(token, xor, multiplier):
    """The noise of tokens as int32 that grows with their Gumbel numbers."""
    code = (token + 1).to(tl.uint32)
    code = (code ^ (code >> 16)) * 0x85EBCA6B
    code = (code ^ (code >> 13)) * 0xC2B2AE35
    out = ((code ^ (code >> 16)) ^ xor) * multiplier
    return ((out ^ (out >> 15)) * 0x2C1B3C6D).to(tl.int32, bitcast=True)


@triton.jit
def _gumbel(bits):
    """float64, from the noise as int32."""
    return -tl.log(-tl.log((bits.to(tl.float64) + 2147483648.5) * 2.3283064365386963e-10))


@triton.jit
def _asked(reals_ptr, wholes_ptr, marks_ptr, bias_ptr, last_ptr, row, position, V):
    """What a request changes in its logits, for _adjusted."""
    reals, wholes = reals_ptr + row * NUM_REALS, wholes_ptr + row * NUM_WHOLES
    marks, bias = tl.load(wholes + MARKS), tl.load(wholes + BIAS)
    last = tl.load(wholes + LAST_POSITION)
    pending = tl.where((last >= 0) & (last < position), tl.load(last_ptr + row), -1)
    return (marks >= 0, marks_ptr + marks.to(tl.int64) * V, bias >= 0, bias_ptr + bias.to(tl.int64) * V,
            pending, tl.load(reals + REPETITION).to(tl.float32), tl.load(reals + PRESENCE).to(tl.float32),
            tl.load(reals + FREQUENCY).to(tl.float32), position < tl.load(wholes + STOPS_FROM))


@triton.jit
def _allowed(bits_ptr, which_ptr, s, V):
    """What a row asks besides where steps have masks: whether it has one, and where that lies."""
    which = tl.load(which_ptr + s)
    return which >= 0, bits_ptr + which.to(tl.int64) * ((V + 31) // 32)


@triton.jit
def _adjusted(x, token, ok, asked):
    """What the mask forbids, bias, penalties and stop tokens kept out. The token sampled last is not yet in
    the marks."""
    has_marks, marks, has_bias, bias, pending, repetition, presence, frequency, keep_out = asked[:9]
    if len(asked) > 9:  # noqa: SIM102  # the first is decided when it is compiled
        if asked[9]:
            word = tl.load(asked[10] + token // 32, mask=ok, other=0)
            x = tl.where(((word >> (token % 32)) & 1) != 0, x, FORBIDDEN)
    if has_bias:
        x += tl.load(bias + token, mask=ok, other=0.0)
    if has_marks:
        mark = tl.load(marks + token, mask=ok, other=0)
        count = (mark & COUNT) + (token == pending).to(tl.int32)
        seen = (count > 0) | ((mark & IN_PROMPT) != 0)
        x = tl.where(seen, tl.where(x > 0, x / repetition, x * repetition), x)
        x = x - frequency * count - tl.where(count > 0, presence, 0.0)
        x = tl.where(keep_out & ((mark & IS_STOP) != 0), float("-inf"), x)
    return x


@triton.jit
def _highest(x, bits, other_x, other_bits):
    return tl.maximum(x, other_x), tl.maximum(bits, other_bits)


@triton.jit
def _tile(logits, b0, stop, V, BLOCK: tl.constexpr, TB: tl.constexpr):
    """Logits of blocks from b0, NOTHING outside."""
    token = (b0 + tl.arange(0, TB))[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    return tl.load(logits + token, mask=(token < V) & (b0 < stop), other=NOTHING)


@triton.jit(do_not_specialize=["PART"], do_not_specialize_on_alignment=["rows_ptr", "lens_ptr"])
def survey_kernel(logits_ptr, rows_ptr, lens_ptr, reals_ptr, wholes_ptr, seeds_ptr, marks_ptr, bias_ptr,
                  last_ptr, max_ptr, noise_ptr, mass_ptr, odd_ptr, bits_ptr, which_ptr, V, NB, stride_logits,
                  PART, BLOCK: tl.constexpr, TB: tl.constexpr, RAW: tl.constexpr, PDL: tl.constexpr):
    """Programs (part, row). Of each block: max [S, NB] keys; noise [S, NB], where the row draws; mass
    [S, NB], sum of exp((logit - block's highest) / temperature), where the row wants it. odd [S, parts]: not
    0 where a logit is not finite. RAW: logits as they are, temperature 1, mass always. Rows of length 0 are
    idle. bits: masks of (V + 31) // 32 words, which [S]: each row's, -1 for none; None without any."""
    part, s = tl.program_id(0), tl.program_id(1)
    if PDL > 0:
        gdc_wait()
        gdc_launch_dependents()
    position = tl.load(lens_ptr + s)
    if position > 0:
        logits = logits_ptr + s.to(tl.int64) * stride_logits
        draws, weighs, sharp, xor, multiplier = False, True, LOG2E, 0, 1
        if not RAW:
            row = tl.load(rows_ptr + s).to(tl.int64)
            asked = _asked(reals_ptr, wholes_ptr, marks_ptr, bias_ptr, last_ptr, row, position, V)
            if bits_ptr is not None:
                asked = asked + _allowed(bits_ptr, which_ptr, s, V)
            temperature = tl.load(reals_ptr + row * NUM_REALS + TEMPERATURE)
            draws = temperature > 0.0
            weighs = draws & (tl.load(reals_ptr + row * NUM_REALS + TOP_P) < 1.0)
            sharp = (1.0 / tl.where(draws, temperature, 1.0) * LOG2E).to(tl.float32)
            xor, multiplier = _row_keys(tl.load(seeds_ptr + row), position)
        odd = tl.zeros((TB, BLOCK), tl.float32)
        stop = tl.minimum(part * PART + PART, NB)
        ahead = _tile(logits, part * PART, stop, V, BLOCK, TB)
        for b0 in range(part * PART, stop, TB):
            block = b0 + tl.arange(0, TB)
            token = block[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
            x = ahead.to(tl.float32)
            ahead = _tile(logits, b0 + TB, stop, V, BLOCK, TB)
            odd += x * 0.0  # NaN from then on where x is not finite
            if not RAW:
                x = _adjusted(x, token, token < V, asked)
            at = s * NB + block
            if draws:  # in one reduction, so that the noise is made where the logits are
                high, bits = tl.reduce((x, _bits(token, xor, multiplier)), 1, _highest)
                tl.store(noise_ptr + at, bits, mask=block < NB)
            else:
                high = tl.max(x, 1)
            tl.store(max_ptr + at, _key(high), mask=block < NB)
            if weighs:
                mass = tl.exp2((x - tl.maximum(high, NOTHING)[:, None]) * sharp)
                tl.store(mass_ptr + at, tl.sum(mass, 1), mask=block < NB)
        tl.store(odd_ptr + s * tl.num_programs(0) + part, tl.sum(odd))


@triton.jit
def _listed(take, list_ptr, NBP: tl.constexpr):
    """Writes the ids of the blocks to take, in order; how many."""
    take = take.to(tl.int32)
    tl.debug_barrier()
    tl.store(list_ptr + tl.cumsum(take, 0) - 1, tl.arange(0, NBP), mask=take > 0)
    tl.debug_barrier()
    return tl.sum(take, 0)


@triton.jit
def _read(i0, n, row, NC: tl.constexpr, BLOCK: tl.constexpr):
    """(adjusted logits, tokens, orders) [NC * BLOCK] of listed blocks from i0; orders are -1 outside."""
    list_ptr, logits, asked, V = row
    i = i0 + tl.arange(0, NC)
    block = tl.load(list_ptr + i, mask=i < n, other=0)
    token = block[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    ok = (i < n)[:, None] & (token < V)
    x = _adjusted(tl.load(logits + token, mask=ok, other=0.0).to(tl.float32), token, ok, asked)
    order = tl.where(ok, _order(x, token), -1)
    return tl.reshape(x, NC * BLOCK), tl.reshape(token, NC * BLOCK), tl.reshape(order, NC * BLOCK)


@triton.jit
def _order(x, token):
    return ((_key(x).to(tl.int64) + (1 << 31)) << 24) | (token ^ LAST_ID)


@triton.jit
def _token(order):
    return ((order & LAST_ID) ^ LAST_ID).to(tl.int32)


@triton.jit
def _border(level, k, row, NBP: tl.constexpr, NC: tl.constexpr, BLOCK: tl.constexpr):
    """An order that exactly the first k tokens reach. level [NBP]: the upper 32 bits of the blocks' best
    orders. Radix over the blocks that can hold them: while a bucket is taken in part, its next 8 bits."""
    least = tl.zeros((), tl.int64)
    for i in range(16):  # about the k-th highest of the blocks, 0 when there are fewer: k tokens reach it
        tried = least + (tl.full((), 1 << 31, tl.int64) >> i)
        least = tl.where(tl.sum((level >= tried).to(tl.int32), 0) >= k, tried, least)
    n = _listed(level >= least, row[0], NBP)
    digits = tl.arange(0, 256)
    prefix, need, shift, split = tl.zeros((), tl.int64), k, 56, k > 0
    while split:
        shift -= 8
        held = tl.zeros((256,), tl.int32)
        for i0 in range(0, n, NC):
            _, _, order = _read(i0, n, row, NC, BLOCK)
            inside = (order >> (shift + 8)) == prefix
            held += tl.histogram(((order >> shift) & 255).to(tl.int32), 256, mask=inside)
        reach = tl.cumsum(held, 0, reverse=True)
        digit = tl.sum((reach >= need).to(tl.int32), 0) - 1
        need -= tl.sum(tl.where(digits == digit + 1, reach, 0), 0)
        prefix = prefix * 256 + digit
        split = (need < tl.sum(tl.where(digits == digit, held, 0), 0)) & (shift > 0)
    return prefix << shift


@triton.jit
def _mass(limit, level, best, sharp, row, NBP: tl.constexpr, NC: tl.constexpr, BLOCK: tl.constexpr):
    """Sum of exp((logit - best) / temperature) of the tokens that reach an order, float64."""
    n = _listed(level >= limit >> 24, row[0], NBP)
    mass = tl.zeros((), tl.float64)
    for i0 in range(0, n, NC):
        x, _, order = _read(i0, n, row, NC, BLOCK)
        mass += tl.sum(tl.where(order >= limit, tl.exp2((x - best) * sharp), 0.0), 0).to(tl.float64)
    return mass


@triton.jit
def _gumbel32(bits):
    """_gumbel in float32, within 1e-3."""
    left = (2147483647 - bits.to(tl.int64)).to(tl.float32) * 2.3283064365386963e-10
    below = (bits.to(tl.int64) + (1 << 31)).to(tl.float32) * 2.3283064365386963e-10
    return -tl.log(tl.where(left < 2.4e-4, left + 1.2e-10, -tl.log(below + 1.2e-10)))


@triton.jit
def _race(limit, level, bound, best, temperature, xor, multiplier, row, NBP: tl.constexpr, NC: tl.constexpr,
          BLOCK: tl.constexpr):
    """The order of the token with the highest logit / temperature + noise among those that reach `limit`.

    bound [NBP]: no token of a block scores more. From the highest bounds down until none is above the score,
    the rest at once when few are left; float32 tells which tokens could win, float64 who does."""
    score = tl.full((), float("-inf"), tl.float64)
    winner = tl.full((), -1, tl.int64)
    sharp, best32 = (1.0 / temperature).to(tl.float32), best.to(tl.float32)
    bound = tl.where(level >= limit >> 24, bound, float("-inf"))
    above = tl.max(bound, 0) + 1.0
    while above > score.to(tl.float32):
        low = score.to(tl.float32)
        if tl.sum(((bound >= low) & (bound < above)).to(tl.int32), 0) > 2 * NC:
            low = tl.maximum(above - 2.0, low)
        n = _listed((bound >= low) & (bound < above), row[0], NBP)
        above = low
        for i0 in range(0, n, NC):
            x, token, order = _read(i0, n, row, NC, BLOCK)
            rough = (x - best32) * sharp + _gumbel32(_bits(token, xor, multiplier))
            rough = tl.where(order >= limit, rough, float("-inf"))
            high = tl.max(rough, 0)
            while (high > float("-inf")) & (high + SLACK >= score):
                one = tl.max(tl.where(rough == high, order, -1), 0)
                value = _value(((one >> 24) - (1 << 31)).to(tl.int32)).to(tl.float64)
                exact = (value - best) / temperature + _gumbel(_bits(_token(one), xor, multiplier))
                winner = tl.where(exact > score, one, winner)
                score = tl.maximum(exact, score)
                rough = tl.where(order == one, float("-inf"), rough)
                high = tl.max(rough, 0)
    return winner


@triton.jit
def _draw(level, noise_ptr, mass_ptr, asks_ptr, k, position, seed, V, NB, row, NBP: tl.constexpr,
          NC: tl.constexpr, BLOCK: tl.constexpr):
    """The order of the drawn token. top_p goes by rejection: the winner of a race is the winner of the
    nucleus if it lies in it; else the race is run again among those ahead of it, who hold the nucleus."""
    temperature, top_p = tl.load(asks_ptr + TEMPERATURE), tl.load(asks_ptr + TOP_P)
    log_min_p = tl.load(asks_ptr + LOG_MIN_P)
    b = tl.arange(0, NBP)
    high = _value((tl.maximum(level, 0) - (1 << 31)).to(tl.int32))
    best = _value((tl.max(level, 0) - (1 << 31)).to(tl.int32))
    best64, sharp = best.to(tl.float64), (1.0 / temperature * LOG2E).to(tl.float32)
    least = best64 + temperature * log_min_p
    key = _key(least.to(tl.float32)).to(tl.int64)
    key += (least.to(tl.float32).to(tl.float64) < least).to(tl.int64)
    limit = (key + (1 << 31)) << 24
    if k < V:
        limit = tl.maximum(limit, _border(level, k, row, NBP, NC, BLOCK))
    xor, multiplier = _row_keys(seed, position)
    bits = tl.load(noise_ptr + b, mask=b < NB, other=LOWEST)
    bound = (high - best) * (1.0 / temperature).to(tl.float32) + _gumbel32(bits) + SLACK
    total = tl.zeros((), tl.float64)
    if top_p < 1.0:
        if (k < V) | (log_min_p > float("-inf")):
            total = _mass(limit, level, best, sharp, row, NBP, NC, BLOCK)
        else:
            mass = tl.load(mass_ptr + b, mask=b < NB, other=0.0)
            total = tl.sum(tl.where(mass > 0.0, mass * tl.exp2((high - best) * sharp), 0.0), 0).to(tl.float64)
    winner, outside = limit, k > 0
    while outside:
        winner = _race(limit, level, bound, best64, temperature, xor, multiplier, row, NBP, NC, BLOCK)
        limit = winner + 1
        ahead = tl.zeros((), tl.float64)
        if top_p < 1.0:
            ahead = _mass(limit, level, best, sharp, row, NBP, NC, BLOCK)
        outside = (ahead > 0.0) & (ahead >= top_p * total)
    return winner


@triton.jit(do_not_specialize=["parts"],
            do_not_specialize_on_alignment=["rows_ptr", "lens_ptr", "token_ptr", "failed_ptr"])
def choose_kernel(logits_ptr, rows_ptr, lens_ptr, reals_ptr, wholes_ptr, seeds_ptr, marks_ptr, bias_ptr,
                  last_ptr, max_ptr, noise_ptr, mass_ptr, odd_ptr, list_ptr, token_ptr, failed_ptr, bits_ptr,
                  which_ptr, V, NB, parts, stride_logits, BLOCK: tl.constexpr, NBP: tl.constexpr,
                  NC: tl.constexpr, PDL: tl.constexpr):
    """A program a row: its token, and 1 where its logits were not all finite (the token is 0 then). Notes the
    token as the request's last, and counts the one before it. Does nothing where a row is idle."""
    s = tl.program_id(0)
    if PDL > 0:
        gdc_wait()
        gdc_launch_dependents()
    position = tl.load(lens_ptr + s)
    if position > 0:
        request = tl.load(rows_ptr + s).to(tl.int64)
        asked = _asked(reals_ptr, wholes_ptr, marks_ptr, bias_ptr, last_ptr, request, position, V)
        asks, wholes = reals_ptr + request * NUM_REALS, wholes_ptr + request * NUM_WHOLES
        if bits_ptr is not None:
            asked = asked + _allowed(bits_ptr, which_ptr, s, V)
        row = (list_ptr + s * NB, logits_ptr + s.to(tl.int64) * stride_logits, asked, V)
        b = tl.arange(0, NBP)
        keys = tl.load(max_ptr + s * NB + b, mask=b < NB, other=LOWEST)
        odd = tl.load(odd_ptr + s * parts + b, mask=b < parts, other=0.0)
        best = _value(tl.max(keys, 0))
        failed = (tl.sum((odd == 0.0).to(tl.int32), 0) < NBP) | (tl.abs(best) > MOST)
        token = tl.zeros((), tl.int32)
        if not failed:
            k = tl.load(wholes + TOP_K)
            if (tl.load(asks + TEMPERATURE) > 0.0) & (k != 1):
                level = tl.where(b < NB, keys.to(tl.int64) + (1 << 31), -1)
                order = _draw(level, noise_ptr + s * NB, mass_ptr + s * NB, asks, k, position,
                              tl.load(seeds_ptr + request), V, NB, row, NBP, NC, BLOCK)
            else:
                t = tl.argmax(keys, 0) * BLOCK + tl.arange(0, BLOCK)
                x = tl.load(row[1] + t, mask=t < V, other=0.0).to(tl.float32)
                order = tl.max(tl.where(t < V, _order(_adjusted(x, t, t < V, asked), t), -1), 0)
            token = _token(order)
        tl.debug_barrier()
        if asked[0] & (asked[4] >= 0):
            tl.store(asked[1] + asked[4], tl.load(asked[1] + asked[4]) + 1)
        tl.store(wholes + LAST_POSITION, position)
        tl.store(last_ptr + request, token.to(tl.int64))
        tl.store(token_ptr + s, token)
        tl.store(failed_ptr + s, failed.to(tl.int32))


@triton.jit(do_not_specialize=["K", "stride_out"], do_not_specialize_on_alignment=["lens_ptr", "tokens_ptr"])
def logprobs_kernel(logits_ptr, lens_ptr, tokens_ptr, max_ptr, mass_ptr, list_ptr, ids_ptr, values_ptr,
                    ranks_ptr, V, NB, stride_logits, stride_out, K, BLOCK: tl.constexpr, NBP: tl.constexpr,
                    NC: tl.constexpr, PDL: tl.constexpr):
    """A program a row: the token taken and its rank, then the K best in order. After a raw survey."""
    s = tl.program_id(0)
    if PDL > 0:
        gdc_wait()
        gdc_launch_dependents()
    if tl.load(lens_ptr + s) > 0:
        logits = logits_ptr + s.to(tl.int64) * stride_logits
        b, t = tl.arange(0, NBP), tl.arange(0, BLOCK)
        keys = tl.load(max_ptr + s * NB + b, mask=b < NB, other=LOWEST)
        mass = tl.load(mass_ptr + s * NB + b, mask=b < NB, other=0.0)
        best = _value(tl.max(keys, 0))
        total = tl.sum(tl.where(b < NB, mass * tl.exp2((_value(keys) - best) * LOG2E), 0.0), 0)
        log_total = tl.log(total.to(tl.float64)) + best.to(tl.float64)
        taken = tl.load(tokens_ptr + s).to(tl.int64)
        value = tl.load(logits + taken).to(tl.float32)
        n = _listed(keys > _key(value), list_ptr + s * NB, NBP)
        rank = tl.zeros((), tl.int64)
        for i0 in range(0, n, NC):
            i = i0 + tl.arange(0, NC)
            block = tl.load(list_ptr + s * NB + i, mask=i < n, other=0)
            token = block[:, None] * BLOCK + t[None, :]
            ok = (i < n)[:, None] & (token < V)
            rank += tl.sum((tl.load(logits + token, mask=ok, other=float("-inf")).to(tl.float32)
                           > value).to(tl.int64))
        tl.store(ids_ptr + s * stride_out, taken)
        tl.store(values_ptr + s * stride_out, (value.to(tl.float64) - log_total).to(tl.float32))
        tl.store(ranks_ptr + s, rank)
        order = tl.full((), 1 << 56, tl.int64)
        for i in range(1, K + 1):
            block = tl.argmax(keys, 0)
            token = block * BLOCK + t
            x = tl.load(logits + token, mask=token < V, other=0.0).to(tl.float32)
            orders = tl.where(token < V, _order(x, token), -1)
            order = tl.max(tl.where(orders < order, orders, -1), 0)  # all before the last one are taken
            tl.store(ids_ptr + s * stride_out + i, _token(order).to(tl.int64))
            value = _value(((order >> 24) - (1 << 31)).to(tl.int32))
            tl.store(values_ptr + s * stride_out + i, (value.to(tl.float64) - log_total).to(tl.float32))
            after = tl.max(tl.where(orders < order, orders, 0), 0)
            keys = tl.where(b == block, ((after >> 24) - (1 << 31)).to(tl.int32), keys)
