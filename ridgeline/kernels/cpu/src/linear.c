/* Products with packed weights: rows in (norm, quantise), tiles, epilogue.
 *
 * Numeric contract: every output depends only on its own row, so results are bitwise equal for every number
 * of rows, threads and chunks. A row that holds NaN or Inf gives NaN.
 */
#include "kernels.h"
#include "tiles.h"

#define ROWS_PER_PASS 64 /* activation rows that stay in the cache while a thread's tiles go by */

INLINE v8 round8(v8 x) { return (x + all8(12582912.f)) - all8(12582912.f); } /* to nearest even, below 2^22 */

/* 32 codes of one byte each. */
INLINE void narrow(const v8i *code, int8_t *out) {
#ifdef RL_AVX2
    __m256i low = _mm256_packs_epi32((__m256i)code[0], (__m256i)code[1]),
            high = _mm256_packs_epi32((__m256i)code[2], (__m256i)code[3]);
    __m256i fours = _mm256_packs_epi16(low, high), /* packing goes by halves: fours 0 2 4 6 1 3 5 7 */
        order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    _mm256_storeu_si256((void *)out, _mm256_permutevar8x32_epi32(fours, order));
#else
    for (int i = 0; i < GROUP; i++) out[i] = (int8_t)code[i / 8][i % 8];
#endif
}

static float rms_gain(const float *x, int k, float eps) {
    v8 even = {0}, odd = {0};
    float total = 0;
    for (int i = 0; i < k; i += 16) {
        v8 a = *(const v8 *)(x + i), b = *(const v8 *)(x + i + 8);
        even += a * a;
        odd += b * b;
    }
    for (int j = 0; j < 8; j++) total += even[j];
    for (int j = 0; j < 8; j++) total += odd[j];
    return 1.f / sqrtf(total / (float)k + eps);
}

/* A row's norm, then codes: scale[b] * code ~ value, sum[b] as tiles.h wants it. */
static void quantise_row(const rl_matrix *w, const rl_product *p, const float *x, int8_t *q, float *scale,
                         float *sum) {
    float gain = p->norm ? rms_gain(x, w->k, p->eps) : 1.f, top_code = w->planes == 2 ? 8128.f : 127.f;
    for (int b = 0; b < w->k / GROUP; b++) {
        v8 v[4], top = {0}, bad = {0};
        v8i code[4], sums = {0};
        for (int i = 0; i < 4; i++) {
            v[i] = *(const v8 *)(x + b * GROUP + 8 * i);
            if (p->norm) v[i] = v[i] * all8(gain) * *(const v8 *)(p->norm + b * GROUP + 8 * i);
            v8 size = (v8)((v8i)v[i] & 0x7fffffff);
            top = pick8(size > top, size, top);
            bad += v[i] * all8(0.f); /* NaN as soon as a value is not finite */
        }
        float largest = 0, poison = 0;
        for (int j = 0; j < 8; j++) {
            largest = top[j] > largest ? top[j] : largest;
            poison += bad[j];
        }
        /* a group below 1e-30 counts as zero: its inverse would be Inf */
        float inverse = largest > 1e-30f && poison == 0 ? top_code / largest : 0.f;
        for (int i = 0; i < 4; i++) {
            code[i] = __builtin_convertvector(poison == 0 ? round8(v[i] * all8(inverse)) : all8(0.f), v8i);
            sums += code[i];
        }
        int32_t total = 0;
        for (int j = 0; j < 8; j++) total += sums[j];
        if (w->planes == 1)
            narrow(code, q + b * GROUP);
        else if (Q8_AS_INT16 && w->format == Q8) {
            int16_t *h = (int16_t *)q + b * GROUP;
            for (int i = 0; i < GROUP; i++)
                h[(i & ~3) + (i & 1) * 2 + (i >> 1 & 1)] = (int16_t)code[i / 8][i % 8];
        } else {
            v8i high[4], low[4];
            for (int i = 0; i < 4; i++) {
                high[i] = (code[i] + 32) >> 6;
                low[i] = code[i] - (high[i] << 6);
            }
            narrow(high, q + 2 * b * GROUP);
            narrow(low, q + 2 * b * GROUP + GROUP);
        }
        scale[b] = largest / top_code + poison;
        sum[b] = scale[b] * (float)total;
        if (w->format == Q8) {
            total *= 128;
            memcpy(sum + b, &total, 4);
        }
    }
}

INLINE void silu_mul(const float *gate, const float *up, int rows, float *out, int64_t stride) {
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < TILE; j += 8) {
            v8 x = *(const v8 *)(gate + i * TILE + j);
            *(v8 *)(out + (int64_t)i * stride + j) =
                x / (all8(1.f) + exp8(-x)) * *(const v8 *)(up + i * TILE + j);
        }
}

static void finish_tile(const rl_matrix *w, const rl_product *p, int tile, int row, int rows,
                        const float *sums) {
    int width = w->n - tile * TILE < TILE ? w->n - tile * TILE : TILE;
    float *out = p->out + (int64_t)row * p->out_stride + (int64_t)tile * TILE;
    for (int i = 0; i < rows; i++, out += p->out_stride, sums += TILE) {
        if (p->epilogue != ADD) {
            memcpy(out, sums, (size_t)width * 4);
            continue;
        }
        const float *add = p->residual + (int64_t)(row + i) * p->residual_stride + (int64_t)tile * TILE;
        for (int j = 0; j < width; j++) out[j] = add[j] + sums[j];
    }
}

void rl_multiply_crew(const rl_matrix *w, const rl_product *p, rl_crew *crew, int thread) {
    int groups = w->k / GROUP, kernel = w->format == Q8 ? 2 : w->planes - 1, paired = p->epilogue == SILU_MUL;
    int64_t stride = (int64_t)w->k * w->planes,
            tile_bytes = (int64_t)groups * (w->format == Q4 ? Q4_BYTES : Q8_BYTES);
    for (int r = thread; r < p->rows; r += crew->threads)
        quantise_row(w, p, p->in + r * p->in_stride, p->codes + r * stride, p->scales + (int64_t)r * groups,
                     p->sums + (int64_t)r * groups);
    meet(crew);
    int tiles = (w->n + TILE - 1) / TILE, units = paired ? tiles / 2 : tiles;
    int first = share_first(units, thread, crew->threads),
        last = share_first(units, thread + 1, crew->threads);
    float a[ROWS_PER_PASS * TILE], b[ROWS_PER_PASS * TILE];
    for (int row = 0; row < p->rows; row += ROWS_PER_PASS) {
        int m = p->rows - row < ROWS_PER_PASS ? p->rows - row : ROWS_PER_PASS;
        const int8_t *q = p->codes + row * stride;
        const float *s = p->scales + (int64_t)row * groups, *u = p->sums + (int64_t)row * groups;
        for (int t = first; t < last; t++) {
            const uint8_t *at = w->tiles + tile_bytes * t;
            tile_product(kernel, at, groups, stride, q, s, u, m, a);
            if (!paired) {
                finish_tile(w, p, t, row, m, a);
                continue;
            }
            tile_product(kernel, at + tile_bytes * units, groups, stride, q, s, u, m, b);
            silu_mul(a, b, m, p->out + (int64_t)row * p->out_stride + (int64_t)t * TILE, p->out_stride);
        }
    }
}

void rl_multiply(const rl_matrix *w, const rl_product *p) {
    rl_crew crew = {0};
#pragma omp parallel num_threads(p->threads) if (p -> threads > 1)
    {
#pragma omp single
        crew.threads = omp_get_num_threads(); /* may be fewer than asked for */
        rl_multiply_crew(w, p, &crew, omp_get_thread_num());
    }
}

/* codes [n, k] (0..15 or -127..127), fp16 scales and minima [n, k / 32] -> tiles; rows past n are zero. */
void rl_pack(int format, int n, int k, const int8_t *q, const uint16_t *scale, const uint16_t *minimum,
             uint8_t *out) {
    int groups = k / GROUP, bytes = format == Q4 ? Q4_BYTES : Q8_BYTES;
    for (int t = 0; t < (n + TILE - 1) / TILE; t++)
        for (int b = 0; b < groups; b++) {
            uint8_t *o = out + ((int64_t)t * groups + b) * bytes;
            memset(o, 0, (size_t)bytes);
            for (int r = 0; r < TILE && t * TILE + r < n; r++) {
                int64_t row = t * TILE + r;
                const int8_t *x = q + row * k + b * GROUP;
                memcpy(o + 2 * r, scale + row * groups + b, 2);
                if (format == Q4) memcpy(o + 32 + 2 * r, minimum + row * groups + b, 2);
                for (int i = 0; i < GROUP; i++) {
                    if (format == Q4)
                        o[64 + 64 * (i % 16 / 4) + 4 * r + i % 4] |= (uint8_t)(x[i] << (i < 16 ? 0 : 4));
                    else
                        o[32 + 64 * (i / 4) + 4 * r + i % 4] = (uint8_t)x[i];
                }
            }
        }
}

/* Rows ids[0..count) of the matrix in fp32, [count, k]. */
void rl_rows(const rl_matrix *w, const int64_t *ids, int count, float *out) {
    int groups = w->k / GROUP, bytes = w->format == Q4 ? Q4_BYTES : Q8_BYTES;
    for (int r = 0; r < count; r++) {
        int lane = (int)(ids[r] % TILE);
        const uint8_t *t = w->tiles + ids[r] / TILE * groups * bytes;
        for (int b = 0; b < groups; b++, t += bytes, out += GROUP) {
            uint16_t half[2];
            memcpy(half, t + 2 * lane, 2);
            memcpy(half + 1, t + 32 + 2 * lane, 2);
            float scale = half_to_float(half[0]), minimum = half_to_float(half[1]);
            for (int i = 0; i < GROUP; i++) {
                if (w->format == Q8)
                    out[i] = scale * (float)(int8_t)t[32 + 64 * (i / 4) + 4 * lane + i % 4];
                else {
                    int code = t[64 + 64 * (i % 16 / 4) + 4 * lane + i % 4];
                    out[i] = fmaf(scale, (float)(i < 16 ? code & 15 : code >> 4), minimum);
                }
            }
        }
    }
}

/* 0: lane by lane, 1: AVX2, 2: AVX-512 with VNNI. */
int rl_instruction_set(void) {
#if defined(RL_VNNI)
    return 2;
#elif defined(RL_AVX2)
    return 1;
#else
    return 0;
#endif
}

int rl_matrix_bytes(void) { return sizeof(rl_matrix); }
int rl_product_bytes(void) { return sizeof(rl_product); }
