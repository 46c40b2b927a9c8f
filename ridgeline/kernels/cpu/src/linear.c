/* Products with packed weights: rows in (norm, quantise), tiles, epilogue.
 *
 * Numeric contract: every output depends only on its own row, so results are bitwise equal for every number
 * of rows, threads and chunks. A row that holds NaN or Inf gives NaN.
 */
#include "tiles.h"

#define ROWS_PER_PASS 64 /* activation rows that stay in the cache while a thread's tiles go by */

enum { STORE = 0, ADD = 1, SILU_MUL = 2 };
enum { Q4 = 4, Q8 = 8 };

typedef struct {
    int32_t format, planes; /* planes of the activations, see tiles.h */
    int32_t n, k;           /* outputs (gate and up together), inputs */
    const uint8_t *tiles; /* for SILU_MUL, the first half is gate's, the second up's; n is a multiple of 32 */
} rl_matrix;

typedef struct {
    int32_t rows, epilogue, threads;
    float eps;
    int64_t in_stride, out_stride, residual_stride; /* floats from row to row */
    const float *in, *norm, *residual;              /* norm [k] or NULL; residual [rows, n] for ADD */
    float *out;
    int8_t *codes;        /* workspace [rows, planes * k] */
    float *scales, *sums; /* workspace [rows, k / 32] */
} rl_product;

/* RMS norm (16 partial sums in fixed order), then codes: scale[b] * code ~ value, sum[b] = scale[b] * sum of
 * codes. */
static void quantise_row(const rl_matrix *w, const rl_product *p, const float *x, int8_t *q, float *scale,
                         float *sum) {
    int k = w->k;
    float gain = 1.f;
    if (p->norm) {
        float part[16] = {0}, total = 0;
        for (int i = 0; i < k; i += 16)
            for (int j = 0; j < 16; j++) part[j] += x[i + j] * x[i + j];
        for (int j = 0; j < 16; j++) total += part[j];
        gain = 1.f / sqrtf(total / (float)k + p->eps);
    }
    float top_code = w->planes == 2 ? 8128.f : 127.f;
    for (int b = 0; b < k / GROUP; b++) {
        float v[GROUP], top[8] = {0}, bad[8] = {0}, largest = 0, poison = 0;
        if (p->norm)
            for (int i = 0; i < GROUP; i++) v[i] = x[b * GROUP + i] * gain * p->norm[b * GROUP + i];
        else
            for (int i = 0; i < GROUP; i++) v[i] = x[b * GROUP + i];
        for (int i = 0; i < GROUP; i += 8)
            for (int j = 0; j < 8; j++) {
                float a = fabsf(v[i + j]);
                top[j] = a > top[j] ? a : top[j];
                bad[j] += v[i + j] * 0.f; /* NaN as soon as a value is not finite */
            }
        for (int j = 0; j < 8; j++) {
            largest = top[j] > largest ? top[j] : largest;
            poison += bad[j];
        }
        float s = largest / top_code + poison,
              inverse = largest > 0 && poison == 0 ? top_code / largest : 0.f;
        int32_t total = 0, code[GROUP];
        for (int i = 0; i < GROUP; i++) { /* round to nearest even by the magic constant */
            float r = (v[i] * inverse + 12582912.f) - 12582912.f;
            code[i] = poison == 0 ? (int32_t)r : 0;
            total += code[i];
        }
        if (w->planes == 1) {
            for (int i = 0; i < GROUP; i++) q[b * GROUP + i] = (int8_t)code[i];
        } else if (Q8_AS_INT16 && w->format == Q8) {
            int16_t *h = (int16_t *)q + b * GROUP;
            for (int i = 0; i < GROUP; i += 4) {
                h[i] = (int16_t)code[i], h[i + 1] = (int16_t)code[i + 2];
                h[i + 2] = (int16_t)code[i + 1], h[i + 3] = (int16_t)code[i + 3];
            }
        } else {
            for (int i = 0; i < GROUP; i++) {
                int hi = (code[i] + 32) >> 6;
                q[2 * b * GROUP + i] = (int8_t)hi;
                q[2 * b * GROUP + GROUP + i] = (int8_t)(code[i] - 64 * hi);
            }
        }
        scale[b] = s;
        sum[b] = s * (float)total;
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

static void multiply(const rl_matrix *w, const rl_product *p, int tid, int threads) {
    int groups = w->k / GROUP, kernel = w->format == Q8 ? 2 : w->planes - 1, paired = p->epilogue == SILU_MUL;
    int64_t stride = (int64_t)w->k * w->planes,
            tile_bytes = (int64_t)groups * (w->format == Q4 ? Q4_BYTES : Q8_BYTES);
    for (int r = tid; r < p->rows; r += threads)
        quantise_row(w, p, p->in + r * p->in_stride, p->codes + r * stride, p->scales + (int64_t)r * groups,
                     p->sums + (int64_t)r * groups);
#pragma omp barrier
    int tiles = (w->n + TILE - 1) / TILE, units = paired ? tiles / 2 : tiles;
    int first = share_first(units, tid, threads), last = share_first(units, tid + 1, threads);
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
    if (p->threads == 1) {
        multiply(w, p, 0, 1);
        return;
    }
#pragma omp parallel num_threads(p->threads)
    multiply(w, p, omp_get_thread_num(), omp_get_num_threads());
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

INLINE void unpack_group(int format, const uint8_t *t, int r, float *out) {
    uint16_t half[2];
    memcpy(half, t + 2 * r, 2);
    memcpy(half + 1, t + 32 + 2 * r, 2);
    float scale = half_to_float(half[0]), minimum = half_to_float(half[1]);
    for (int i = 0; i < GROUP; i++) {
        if (format == Q4) {
            int byte = t[64 + 64 * (i % 16 / 4) + 4 * r + i % 4];
            out[i] = scale * (float)(i < 16 ? byte & 15 : byte >> 4) + minimum;
        } else {
            out[i] = scale * (float)(int8_t)t[32 + 64 * (i / 4) + 4 * r + i % 4];
        }
    }
}

/* Rows ids[0..count) of the matrix in fp32, [count, k]; ids NULL for rows 0..count in order. bf16: as
 * bfloat16. */
void rl_unpack(const rl_matrix *w, const int64_t *ids, int count, int bf16, void *out, int threads) {
    int groups = w->k / GROUP, bytes = w->format == Q4 ? Q4_BYTES : Q8_BYTES;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int r = 0; r < count; r++) {
        int64_t id = ids ? ids[r] : r;
        const uint8_t *t = w->tiles + id / TILE * groups * bytes;
        for (int b = 0; b < groups; b++, t += bytes) {
            float v[GROUP];
            unpack_group(w->format, t, (int)(id % TILE), v);
            int64_t at = (int64_t)r * w->k + b * GROUP;
            if (!bf16)
                memcpy((float *)out + at, v, sizeof v);
            else
                for (int i = 0; i < GROUP; i++) ((uint16_t *)out)[at + i] = float_to_bf16(v[i]);
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
