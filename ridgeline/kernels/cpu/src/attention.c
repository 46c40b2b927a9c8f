/* Decode attention over a paged cache: qk-norm, rotation, the write of the new token's key and value,
 * softmax.
 *
 * One token a row. Keys are taken in chunks of KEY_CHUNK anchored at position 0 whose partial results are
 * folded in order, so a row's result does not depend on its neighbours, on threads or on how the work was
 * cut.
 */
#include "kernels.h"

#define KEY_CHUNK 256
#define MAX_GROUP 8 /* queries that share a pass over the keys */
#define MAX_DIM 256
#define HEAD 8 /* floats before a partial's vector: maximum, sum, padding */

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
    const int32_t *table = a->table + r * a->table_stride;
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

#define EACH8(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7)

INLINE void scores(const rl_attention *a, const int32_t *table, int head, const float *q, int from, int end,
                   int group, float *score, const int dim) {
    float stage[8 * MAX_DIM];
    for (int j = from; j < end; j += 8) {
        int width = end - j < 8 ? end - j : 8;
        int64_t at = place(a, table, head, j);
        if (j + 8 < end) prefetch8(a, a->keys, place(a, table, head, j + 8));
        for (int e = 0; e < width; e++) load8(a, a->keys, at + e * a->slot_stride, dim, stage + e * dim);
        for (int e = width; e < 8; e++) memset(stage + e * dim, 0, (size_t)dim * 4);
        for (int g = 0; g < group; g++) {
            const float *x = q + g * dim;
#define DECLARE(e) v8 a##e = {0};
#define STEP(e) a##e = fma8(v, *(const v8 *)(stage + e * dim + i), a##e);
            EACH8(DECLARE)
            for (int i = 0; i < dim; i += 8) {
                v8 v = *(const v8 *)(x + i);
                EACH8(STEP)
            }
            *(v8 *)(score + g * KEY_CHUNK + j - from) = sums8(a0, a1, a2, a3, a4, a5, a6, a7);
#undef DECLARE
#undef STEP
        }
    }
}

/* Scores to weights, in place; keys before `first` and past `count` weigh nothing. Fills maximum and sum. */
static void weigh(float *s, int first, int count, float scale, float *part) {
    int full = (count + 7) & ~7;
    float largest = -INFINITY, total = 0;
    v8 top = all8(-INFINITY), sum = {0}, bad = {0};
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

INLINE void mix(const rl_attention *a, const int32_t *table, int head, const float *score, int from,
                int first, int end, int group, float *part, const int dim) {
    float stage[8 * MAX_DIM];
    for (int g = 0; g < group; g++) memset(part + g * (dim + HEAD) + HEAD, 0, (size_t)dim * 4);
    for (int j = from; j < end; j += 8) {
        int width = end - j < 8 ? end - j : 8, low = j < first ? first - j : 0;
        int64_t at = place(a, table, head, j);
        if (j + 8 < end) prefetch8(a, a->values, place(a, table, head, j + 8));
        for (int e = low; e < width; e++) load8(a, a->values, at + e * a->slot_stride, dim, stage + e * dim);
        for (int g = 0; g < group; g++) {
            const float *weight = score + g * KEY_CHUNK + j - from;
            float *out = part + g * (dim + HEAD) + HEAD;
            for (int i = 0; i < dim; i += 32) {
                int left = dim - i; /* of 32, 16, 8 or 24 elements */
                v8 o0 = *(v8 *)(out + i), o1 = {0}, o2 = {0}, o3 = {0};
                if (left > 8) o1 = *(v8 *)(out + i + 8);
                if (left > 16) o2 = *(v8 *)(out + i + 16);
                if (left > 24) o3 = *(v8 *)(out + i + 24);
                for (int e = low; e < width; e++) {
                    const float *x = stage + e * dim + i;
                    v8 p = all8(weight[e]);
                    o0 = fma8(p, *(const v8 *)x, o0);
                    if (left > 8) o1 = fma8(p, *(const v8 *)(x + 8), o1);
                    if (left > 16) o2 = fma8(p, *(const v8 *)(x + 16), o2);
                    if (left > 24) o3 = fma8(p, *(const v8 *)(x + 24), o3);
                }
                *(v8 *)(out + i) = o0;
                if (left > 8) *(v8 *)(out + i + 8) = o1;
                if (left > 16) *(v8 *)(out + i + 16) = o2;
                if (left > 24) *(v8 *)(out + i + 24) = o3;
            }
        }
    }
}

/* Keys [from, end) of one chunk for up to MAX_GROUP queries of a head; those before `first` are not seen and
 * may hold anything. from is a multiple of 8, as block_size is, so eight keys share a page. */
INLINE void chunk_of(const rl_attention *a, const int32_t *table, int head, const float *q, int from,
                     int first, int end, int group, float *part, const int dim) {
    float score[MAX_GROUP * KEY_CHUNK];
    scores(a, table, head, q, from, end, group, score, dim);
    for (int g = 0; g < group; g++)
        weigh(score + g * KEY_CHUNK, first - from, end - from, a->scale, part + g * (dim + HEAD));
    mix(a, table, head, score, from, first, end, group, part, dim);
}

/* One item of work: up to MAX_GROUP query heads, from `query` on, that share a KV head of a row, over the
 * chunks of keys [low, high] that the row sees. */
typedef struct {
    int row, head, query, group, low, high;
} piece;

static piece piece_of(const rl_attention *a, int item, int passes) {
    int per_head = a->heads / a->kv_heads, from = item % passes * MAX_GROUP, unit = item / passes;
    piece s = {.row = unit / a->kv_heads, .head = unit % a->kv_heads};
    int position = a->position[s.row];
    s.query = s.head * per_head + from;
    s.group = per_head - from < MAX_GROUP ? per_head - from : MAX_GROUP;
    s.low = a->window && position >= a->window ? (position + 1 - a->window) / KEY_CHUNK : 0;
    s.high = position / KEY_CHUNK;
    return s;
}

static void chunk(const rl_attention *a, const piece *s, int number, float *part) {
    int dim = a->head_dim, end = a->position[s->row] + 1,
        first = a->window && end > a->window ? end - a->window : 0;
    int from = number * KEY_CHUNK, to = from + KEY_CHUNK < end ? from + KEY_CHUNK : end;
    if (first < from)
        first = from;
    else
        from = first & ~7;
    const int32_t *table = a->table + s->row * a->table_stride;
    const float *q = a->queries + ((int64_t)s->row * a->heads + s->query) * dim;
    if (dim == 64)
        chunk_of(a, table, s->head, q, from, first, to, s->group, part, 64);
    else if (dim == 128)
        chunk_of(a, table, s->head, q, from, first, to, s->group, part, 128);
    else
        chunk_of(a, table, s->head, q, from, first, to, s->group, part, dim);
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
    int dim = a->head_dim;
    float *out = a->out + ((int64_t)s->row * a->heads + s->query) * dim;
    for (int g = 0; g < s->group; g++, acc += dim + HEAD, out += dim) {
        float inverse = 1.f / acc[1];
        for (int i = 0; i < dim; i++) out[i] = acc[HEAD + i] * inverse;
    }
}

/* Whole rows. */
static void attend(const rl_attention *a, const piece *s) {
    float acc[MAX_GROUP * (MAX_DIM + HEAD)], part[MAX_GROUP * (MAX_DIM + HEAD)];
    chunk(a, s, s->low, acc);
    for (int number = s->low + 1; number <= s->high; number++) {
        chunk(a, s, number, part);
        fold(acc, part, s->group, a->head_dim);
    }
    finish(a, s, acc);
}

/* Long rows on several threads: their chunks first, then the same folds in the same order. */
static void attend_cut(const rl_attention *a, int passes, rl_crew *crew, int thread) {
    int dim = a->head_dim, items = a->rows * a->kv_heads * passes;
    int64_t size = MAX_GROUP * (dim + HEAD);
    for (int cut = take(crew); cut < items * a->chunks; cut = take(crew)) {
        int number = cut % a->chunks;
        piece s = piece_of(a, cut / a->chunks, passes);
        if (s.low <= number && number <= s.high) chunk(a, &s, number, a->partial + cut * size);
    }
    meet(crew);
    for (int item = thread; item < items; item += crew->threads) {
        piece s = piece_of(a, item, passes);
        float *acc = a->partial + ((int64_t)item * a->chunks + s.low) * size;
        for (int number = s.low + 1; number <= s.high; number++)
            fold(acc, acc + (number - s.low) * size, s.group, dim);
        finish(a, &s, acc);
    }
}

void rl_attend_crew(const rl_attention *a, rl_crew *crew, int thread) {
    int passes = (a->heads / a->kv_heads + MAX_GROUP - 1) / MAX_GROUP;
    for (int r = thread; r < a->rows; r += crew->threads) write_row(a, r);
    meet(crew);
    if (a->chunks)
        attend_cut(a, passes, crew, thread);
    else
        for (int item = take(crew); item < a->rows * a->kv_heads * passes; item = take(crew)) {
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
