/* Causal attention over a paged cache: qk-norm, rotation, the write of the new tokens' keys and values,
 * softmax.
 *
 * A row is one token. Keys are taken in chunks of KEY_CHUNK anchored at position 0 whose partial results are
 * folded in order, so a token's result does not depend on its neighbours, on threads or on how the work was
 * cut: in a prompt's chunk it is what a decode step would give.
 */
#include "kernels.h"

#define KEY_CHUNK 256
#define MAX_GROUP 16 /* queries that share a pass over the keys */
#define MAX_DIM 256
#define HEAD 8 /* floats before a partial's vector: maximum, sum, padding */

INLINE const int32_t *table_of(const rl_attention *a, int row) {
    return a->table + (a->sequence ? a->sequence[row] : row) * a->table_stride;
}

INLINE int64_t place(const rl_attention *a, const int32_t *table, int head, int position) {
    return table[position / a->block_size] * a->page_stride + position % a->block_size * a->slot_stride +
           head * a->head_stride;
}

INLINE void load8(const rl_attention *a, const void *from, int64_t at, int dim, float *out) {
    if (!a->bf16) {
        memcpy(out, (const float *)from + at, (size_t)dim * 4);
        return;
    }
    const uint16_t *h = (const uint16_t *)from + at;
#ifdef RL_AVX2
    for (int i = 0; i < dim; i += 8) {
        __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)(h + i)));
        _mm256_storeu_si256((void *)(out + i), _mm256_slli_epi32(wide, 16));
    }
#else
    for (int i = 0; i < dim; i++) {
        uint32_t u = (uint32_t)h[i] << 16;
        memcpy(out + i, &u, 4);
    }
#endif
}

INLINE void prefetch8(const rl_attention *a, const void *from, int64_t at) {
    int size = a->bf16 ? 2 : 4;
    const char *start = (const char *)from + at * size;
    for (int e = 0; e < 8; e++)
        for (int i = 0; i < a->head_dim * size; i += 64)
            __builtin_prefetch(start + e * a->slot_stride * size + i);
}

static void store(const rl_attention *a, void *to, int64_t at, const float *v) {
    if (!a->bf16)
        memcpy((float *)to + at, v, (size_t)a->head_dim * 4);
    else
        for (int i = 0; i < a->head_dim; i++) ((uint16_t *)to)[at + i] = float_to_bf16(v[i]);
}

/* One head: norm when given, then the first rotary_dim elements turn in half-split pairs. */
static void turn(const rl_attention *a, const float *x, const float *norm, const float *c, const float *s,
                 float *out) {
    int dim = a->head_dim, half = a->rotary_dim / 2;
    float v[MAX_DIM], gain = 1.f;
    if (norm) {
        float part[8] = {0}, total = 0;
        for (int i = 0; i < dim; i += 8)
            for (int j = 0; j < 8; j++) part[j] += x[i + j] * x[i + j];
        for (int j = 0; j < 8; j++) total += part[j];
        gain = 1.f / sqrtf(total / (float)dim + a->eps);
    }
    for (int i = 0; i < dim; i++) v[i] = norm ? x[i] * gain * norm[i] : x[i];
    for (int i = 0; i < half; i++) {
        out[i] = v[i] * c[i] - v[i + half] * s[i];
        out[i + half] = v[i + half] * c[i] + v[i] * s[i];
    }
    for (int i = 2 * half; i < dim; i++) out[i] = v[i];
}

static void write_row(const rl_attention *a, int r) {
    int position = a->position[r], dim = a->head_dim;
    const float *x = a->qkv + r * a->qkv_stride, *c = a->cosine + r * a->angle_stride,
                *s = a->sine + r * a->angle_stride;
    const int32_t *table = table_of(a, r);
    for (int h = 0; h < a->heads; h++)
        turn(a, x + h * dim, a->q_norm, c, s, a->queries + ((int64_t)r * a->heads + h) * dim);
    for (int h = 0; h < a->kv_heads; h++) {
        int64_t at = place(a, table, h, position);
        float key[MAX_DIM];
        turn(a, x + (a->heads + h) * dim, a->k_norm, c, s, key);
        store(a, a->keys, at, key);
        store(a, a->values, at, x + (a->heads + a->kv_heads + h) * dim);
    }
}

/* Sums of eight vectors, one a lane, in fixed order. */
INLINE v8 sums8(v8 a0, v8 a1, v8 a2, v8 a3, v8 a4, v8 a5, v8 a6, v8 a7) {
#ifdef RL_AVX2
#define H(x, y) _mm256_hadd_ps((__m256)(x), (__m256)(y))
    __m256 lo = H(H(a0, a1), H(a2, a3)), hi = H(H(a4, a5), H(a6, a7));
#undef H
    return (v8)_mm256_add_ps(_mm256_permute2f128_ps(lo, hi, 0x20), _mm256_permute2f128_ps(lo, hi, 0x31));
#else
#define S(a) (((a[0] + a[1]) + (a[2] + a[3])) + ((a[4] + a[5]) + (a[6] + a[7])))
    return (v8){S(a0), S(a1), S(a2), S(a3), S(a4), S(a5), S(a6), S(a7)};
#undef S
#endif
}

/* Products of `group` queries with 8 / group keys of the stage: the wider block loads each key for two. */
INLINE void dot_block(const float *const *q, const float *stage, float *score, const int group,
                      const int dim) {
    const int keys = 8 / group;
    v8 acc[8] = {{0}};
    for (int i = 0; i < dim; i += 8) {
        v8 key[8];
#pragma GCC unroll 8
        for (int e = 0; e < keys; e++) key[e] = load_once(stage + e * dim + i);
#pragma GCC unroll 2
        for (int g = 0; g < group; g++) {
            v8 x = load_once(q[g] + i);
#pragma GCC unroll 8
            for (int e = 0; e < keys; e++) acc[g * keys + e] = fma8(x, key[e], acc[g * keys + e]);
        }
    }
    v8 sums = sums8(acc[0], acc[1], acc[2], acc[3], acc[4], acc[5], acc[6], acc[7]);
    for (int g = 0; g < group; g++)
        memcpy(score + g * KEY_CHUNK, (float *)&sums + g * keys, (size_t)keys * 4);
}

/* out += weight * value for eight staged values and the elements [0, 8 * width) of `group` queries. */
INLINE void mix_block(const float *weight, const float *stage, int low, int high, float *out, const int group,
                      const int width, const int dim) {
    v8 acc[2][4];
#pragma GCC unroll 2
    for (int g = 0; g < group; g++)
#pragma GCC unroll 4
        for (int c = 0; c < width; c++) acc[g][c] = *(v8 *)(out + g * (dim + HEAD) + 8 * c);
    for (int e = low; e < high; e++) {
        v8 value[4];
#pragma GCC unroll 4
        for (int c = 0; c < width; c++) value[c] = load_once(stage + e * dim + 8 * c);
#pragma GCC unroll 2
        for (int g = 0; g < group; g++)
#pragma GCC unroll 4
            for (int c = 0; c < width; c++)
                acc[g][c] = fma8(all8(weight[g * KEY_CHUNK + e]), value[c], acc[g][c]);
    }
#pragma GCC unroll 2
    for (int g = 0; g < group; g++)
#pragma GCC unroll 4
        for (int c = 0; c < width; c++) *(v8 *)(out + g * (dim + HEAD) + 8 * c) = acc[g][c];
}

/* One item of work: up to MAX_GROUP queries that share a KV head. Query `from` + g of the run is the head
 * (from + g) % per_head of its token (from + g) / per_head. They see keys [first of the first, last]. */
typedef struct {
    int token, head, from, group, first, last; /* token: the run's first */
    const int32_t *table;
} piece;

INLINE int first_seen(const rl_attention *a, int position) {
    return a->window && position >= a->window ? position + 1 - a->window : 0;
}

static piece piece_of(const rl_attention *a, int item, int passes) {
    int run = item / passes / a->kv_heads, per_head = a->heads / a->kv_heads;
    piece s = {.token = a->run_start ? a->run_start[run] : run, .head = item / passes % a->kv_heads};
    int tokens = a->run_start ? a->run_start[run + 1] - s.token : 1;
    s.from = item % passes * MAX_GROUP;
    s.group = tokens * per_head - s.from < MAX_GROUP ? tokens * per_head - s.from : MAX_GROUP;
    s.first = first_seen(a, a->position[s.token]);
    s.last = a->position[s.token + tokens - 1];
    s.table = table_of(a, s.token);
    return s;
}

/* Its place among all queries, [rows, heads]. */
INLINE int64_t query_of(const rl_attention *a, const piece *s, int g) {
    int per_head = a->heads / a->kv_heads, at = s->from + g;
    return (int64_t)(s->token + at / per_head) * a->heads + s->head * per_head + at % per_head;
}

INLINE int position_of(const rl_attention *a, const piece *s, int g) {
    return a->position[s->token + (s->from + g) / (a->heads / a->kv_heads)];
}

/* Keys [from, end) in eights, which share a page: from is a multiple of 8, as block_size is. */
INLINE void scores(const rl_attention *a, const piece *s, int from, int end, float *score, const int dim) {
    float stage[8 * MAX_DIM];
    const float *q[MAX_GROUP];
    for (int g = 0; g < s->group; g++) q[g] = a->queries + query_of(a, s, g) * dim;
    for (int j = from; j < end; j += 8) {
        int width = end - j < 8 ? end - j : 8, g = 0;
        int64_t at = place(a, s->table, s->head, j);
        if (j + 8 < end) prefetch8(a, a->keys, place(a, s->table, s->head, j + 8));
        for (int e = 0; e < width; e++) load8(a, a->keys, at + e * a->slot_stride, dim, stage + e * dim);
        for (int e = width; e < 8; e++) memset(stage + e * dim, 0, (size_t)dim * 4);
        for (; g + 2 <= s->group; g += 2)
            for (int e = 0; e < 8; e += 4)
                dot_block(q + g, stage + e * dim, score + g * KEY_CHUNK + j - from + e, 2, dim);
        if (g < s->group) dot_block(q + g, stage, score + g * KEY_CHUNK + j - from, 1, dim);
    }
}

/* Scores to weights, in place; only keys [first, count) weigh anything. Fills maximum and sum. full: keys
 * that some query of the piece sees, in whole eights. */
static void weigh(float *s, int first, int count, int full, float scale, float *part) {
    float largest = -INFINITY, total = 0;
    v8 top = all8(-INFINITY), sum = {0}, bad = {0};
    if (first < 0) first = 0;
    if (count > full) count = full;
    if (first >= count) {
        memset(s, 0, (size_t)full * 4);
        part[0] = -INFINITY, part[1] = 0;
        return;
    }
    for (int i = 0; i < first; i++) s[i] = -INFINITY;
    for (int i = count; i < full; i++) s[i] = -INFINITY;
    for (int i = 0; i < full; i += 8) {
        v8 v = *(v8 *)(s + i);
        top = pick8(v > top, v, top);
        bad += pick8(v != v, v, all8(0.f)); /* a comparison passes NaN by; this does not */
    }
    for (int e = 0; e < 8; e++) largest = top[e] > largest ? top[e] : largest;
    for (int e = 0; e < 8; e++) largest += bad[e];
    for (int i = 0; i < full; i += 8) *(v8 *)(s + i) = exp8((*(v8 *)(s + i) - all8(largest)) * all8(scale));
    for (int i = 0; i < first; i++) s[i] = 0;
    for (int i = count; i < full; i++) s[i] = 0;
    for (int i = 0; i < full; i += 8) sum += *(v8 *)(s + i);
    for (int e = 0; e < 8; e++) total += sum[e];
    part[0] = largest * scale;
    part[1] = total;
}

INLINE void mix(const rl_attention *a, const piece *s, const float *score, int from, int first, int end,
                float *part, const int dim) {
    float stage[8 * MAX_DIM];
    for (int g = 0; g < s->group; g++) memset(part + g * (dim + HEAD) + HEAD, 0, (size_t)dim * 4);
    for (int j = from; j < end; j += 8) {
        int last = end - j < 8 ? end - j : 8, low = j < first ? first - j : 0;
        int late = j + last > a->position[s->token] + 1; /* later tokens' own values, which may be NaN */
        int64_t at = place(a, s->table, s->head, j);
        if (j + 8 < end) prefetch8(a, a->values, place(a, s->table, s->head, j + 8));
        for (int e = low; e < last; e++) load8(a, a->values, at + e * a->slot_stride, dim, stage + e * dim);
        for (int g = 0, two; g < s->group; g += 1 + two) {
            const float *weight = score + g * KEY_CHUNK + j - from;
            float *out = part + g * (dim + HEAD) + HEAD;
            int seen = late ? position_of(a, s, g) + 1 - j : last, high = seen < last ? seen : last, i = 0;
            two = !late && g + 2 <= s->group;
            for (; i + 32 <= dim; i += 32)
                if (two)
                    mix_block(weight, stage + i, low, high, out + i, 2, 4, dim);
                else
                    mix_block(weight, stage + i, low, high, out + i, 1, 4, dim);
            for (; i < dim; i += 8)
                if (two)
                    mix_block(weight, stage + i, low, high, out + i, 2, 1, dim);
                else
                    mix_block(weight, stage + i, low, high, out + i, 1, 1, dim);
        }
    }
}

/* Keys of one chunk that a piece sees; those before the first may hold anything. */
INLINE void chunk_of(const rl_attention *a, const piece *s, int number, float *part, const int dim) {
    float score[MAX_GROUP * KEY_CHUNK];
    int from = number * KEY_CHUNK, end = from + KEY_CHUNK <= s->last ? from + KEY_CHUNK : s->last + 1;
    int first = s->first < from ? from : s->first;
    from = first & ~7;
    scores(a, s, from, end, score, dim);
    for (int g = 0; g < s->group; g++) {
        int position = position_of(a, s, g);
        weigh(score + g * KEY_CHUNK, first_seen(a, position) - from, position + 1 - from,
              (end - from + 7) & ~7, a->scale, part + g * (dim + HEAD));
    }
    mix(a, s, score, from, first, end, part, dim);
}

static void chunk(const rl_attention *a, const piece *s, int number, float *part) {
    if (a->head_dim == 64)
        chunk_of(a, s, number, part, 64);
    else if (a->head_dim == 128)
        chunk_of(a, s, number, part, 128);
    else
        chunk_of(a, s, number, part, a->head_dim);
}

/* acc = acc and part together; both are group partials. */
static void fold(float *acc, const float *part, int group, int dim) {
    for (int g = 0; g < group; g++, acc += dim + HEAD, part += dim + HEAD) {
        float largest = acc[0] > part[0] ? acc[0] : part[0];
        float old = exp8(all8(acc[0] - largest))[0], new = exp8(all8(part[0] - largest))[0];
        acc[0] = largest;
        acc[1] = acc[1] * old + part[1] * new;
        for (int i = HEAD; i < dim + HEAD; i++) acc[i] = acc[i] * old + part[i] * new;
    }
}

static void finish(const rl_attention *a, const piece *s, const float *acc) {
    for (int g = 0; g < s->group; g++, acc += a->head_dim + HEAD) {
        float inverse = 1.f / acc[1], *out = a->out + query_of(a, s, g) * a->head_dim;
        if (a->sinks) {
            float sink = a->sinks[query_of(a, s, g) % a->heads], largest = acc[0] > sink ? acc[0] : sink;
            float gain = exp8(all8(acc[0] - largest))[0];
            inverse = gain / (acc[1] * gain + exp8(all8(sink - largest))[0]);
        }
        for (int i = 0; i < a->head_dim; i++) out[i] = acc[HEAD + i] * inverse;
    }
}

/* All keys of a piece. */
static void attend(const rl_attention *a, const piece *s) {
    float acc[MAX_GROUP * (MAX_DIM + HEAD)], part[MAX_GROUP * (MAX_DIM + HEAD)];
    chunk(a, s, s->first / KEY_CHUNK, acc);
    for (int number = s->first / KEY_CHUNK + 1; number <= s->last / KEY_CHUNK; number++) {
        chunk(a, s, number, part);
        fold(acc, part, s->group, a->head_dim);
    }
    finish(a, s, acc);
}

/* Few pieces with many keys, on several threads: the chunks first, then the same folds in the same order. */
static void attend_cut(const rl_attention *a, int items, int passes, rl_crew *crew, int thread) {
    int64_t size = MAX_GROUP * (a->head_dim + HEAD);
    for (int cut = take(crew); cut < items * a->chunks; cut = take(crew)) {
        int number = cut % a->chunks;
        piece s = piece_of(a, cut / a->chunks, passes);
        if (s.first / KEY_CHUNK <= number && number <= s.last / KEY_CHUNK)
            chunk(a, &s, number, a->partial + cut * size);
    }
    meet(crew);
    for (int item = thread; item < items; item += crew->threads) {
        piece s = piece_of(a, item, passes);
        int low = s.first / KEY_CHUNK, count = s.last / KEY_CHUNK - low;
        float *acc = a->partial + ((int64_t)item * a->chunks + low) * size;
        for (int at = 1; at <= count; at++) fold(acc, acc + at * size, s.group, a->head_dim);
        finish(a, &s, acc);
    }
}

void rl_attend_crew(const rl_attention *a, rl_crew *crew, int thread) {
    int passes = (a->heads / a->kv_heads + MAX_GROUP - 1) / MAX_GROUP;
    int runs = a->run_start ? 0 : a->rows;
    while (a->run_start && a->run_start[runs] < a->rows) runs++;
    int items = runs * a->kv_heads * passes;
    for (int r = thread; r < a->rows; r += crew->threads) write_row(a, r);
    meet(crew);
    if (a->chunks)
        attend_cut(a, items, passes, crew, thread);
    else
        for (int item = take(crew); item < items; item = take(crew)) {
            piece s = piece_of(a, item, passes);
            attend(a, &s);
        }
}

void rl_attend(const rl_attention *a) {
    rl_crew crew = {0};
#pragma omp parallel num_threads(a->threads) if (a -> threads > 1)
    {
#pragma omp single
        crew.threads = omp_get_num_threads(); /* may be fewer than asked for */
        rl_attend_crew(a, &crew, omp_get_thread_num());
    }
}

int rl_attention_bytes(void) { return sizeof(rl_attention); }
