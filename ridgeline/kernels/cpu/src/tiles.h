/* Products of one tile of packed weights with up to eight rows of quantised activations, for three
 * instruction sets.
 *
 * Tile: 16 output rows; for each group of 32 inputs
 *   q4: 16 fp16 scales, 16 fp16 minima, 4 lines of 64 bytes (w = scale * q + min, q in 0..15)
 *       line c, byte 4*r+j: low nibble = q[r][4*c+j], high nibble = q[r][16+4*c+j]
 *   q8: 16 fp16 scales, 8 lines of 64 bytes (w = scale * q, q in -127..127); line c, byte 4*r+j = q[r][4*c+j]
 *
 * Activations, per group of 32 with one fp32 scale:
 *   1 plane:  int8, |q| <= 127
 *   2 planes: 14 bits, q = 64 * hi + lo, |q| <= 8128, hi in -127..127, lo in -32..31
 *   q4 products take either (bytes: 32 hi, then 32 lo); q8 products take 14 bits, without VNNI as int16 in
 * the order 0 2 1 3 of each four (AVX2 multiplies even and odd bytes apart), else as two planes.
 *
 * Sums inside a group are exact int32; over groups one fp32 accumulator an output, in increasing k, by fused
 * multiply-adds. So an output depends on its own row only and is the same under every instruction set.
 */
#pragma once
#include "common.h"

#define TILE 16
#define GROUP 32
#define Q4_BYTES 320
#define Q8_BYTES 544
#if defined(RL_AVX2) && !defined(RL_VNNI)
#define Q8_AS_INT16 1
#else
#define Q8_AS_INT16 0
#endif

/* t: the tile; groups: of a row; xq, xs, xm: rows' codes, scales, scaled sums (for q8: 128 * sum as int32, what
 * unsigned weights q + 128 add too much); stride: bytes from row to row of xq; out[m][r]. */
#define TILE_ARGS                                                                                            \
    const uint8_t *t, int groups, const int8_t *xq, const float *xs, const float *xm, int64_t stride,        \
        float *out
INLINE int32_t four(const int8_t *x) {
    int32_t v;
    memcpy(&v, x, 4);
    return v;
}
#if defined(RL_VNNI)
INLINE void tile_q4(TILE_ARGS, const int MB, const int P) {
    __m512 acc[MB];
    const __m512i low = _mm512_set1_epi8(15);
    for (int m = 0; m < MB; m++) acc[m] = _mm512_setzero_ps();
    for (int b = 0; b < groups; b++, t += Q4_BYTES) {
        __m512 d = _mm512_cvtph_ps(_mm256_loadu_si256((const void *)t)),
               mn = _mm512_cvtph_ps(_mm256_loadu_si256((const void *)(t + 32)));
        __m512i w[8];
        for (int c = 0; c < 4; c++) {
            __m512i p = _mm512_loadu_si512(t + 64 + 64 * c);
            w[c] = _mm512_and_si512(p, low);
            w[c + 4] = _mm512_and_si512(_mm512_srli_epi16(p, 4), low);
        }
        for (int c = 0; c < 5; c++) _mm_prefetch((const char *)t + 64 * c + 2048, _MM_HINT_T0);
        for (int m = 0; m < MB; m++) {
            const int8_t *x = xq + m * stride + b * P * GROUP;
            __m512i s = _mm512_setzero_si512(), lo = s;
            for (int c = 0; c < 8; c++) s = _mm512_dpbusd_epi32(s, w[c], _mm512_set1_epi32(four(x + 4 * c)));
            if (P == 2) {
                for (int c = 0; c < 8; c++)
                    lo = _mm512_dpbusd_epi32(lo, w[c], _mm512_set1_epi32(four(x + GROUP + 4 * c)));
                s = _mm512_add_epi32(_mm512_slli_epi32(s, 6), lo);
            }
            __m512 a = _mm512_fmadd_ps(mn, _mm512_set1_ps(xm[m * groups + b]), acc[m]);
            acc[m] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(s),
                                     _mm512_mul_ps(d, _mm512_set1_ps(xs[m * groups + b])), a);
        }
    }
    for (int m = 0; m < MB; m++) _mm512_storeu_ps(out + TILE * m, acc[m]);
}
INLINE void tile_q8(TILE_ARGS, const int MB) {
    __m512 acc[MB];
    const __m512i flip = _mm512_set1_epi8((char)0x80);
    for (int m = 0; m < MB; m++) acc[m] = _mm512_setzero_ps();
    for (int b = 0; b < groups; b++, t += Q8_BYTES) {
        __m512 d = _mm512_cvtph_ps(_mm256_loadu_si256((const void *)t));
        __m512i w[8];
        for (int c = 0; c < 8; c++)
            w[c] = _mm512_xor_si512(_mm512_loadu_si512(t + 32 + 64 * c), flip); /* q + 128: unsigned */
        for (int c = 0; c < 9; c++) _mm_prefetch((const char *)t + 64 * c + 2048, _MM_HINT_T0);
        for (int m = 0; m < MB; m++) {
            const int8_t *x = xq + m * stride + b * 2 * GROUP;
            __m512i hi = _mm512_setzero_si512(), lo = hi;
            for (int c = 0; c < 8; c++) {
                hi = _mm512_dpbusd_epi32(hi, w[c], _mm512_set1_epi32(four(x + 4 * c)));
                lo = _mm512_dpbusd_epi32(lo, w[c], _mm512_set1_epi32(four(x + GROUP + 4 * c)));
            }
            __m512i over = _mm512_set1_epi32(four((const int8_t *)(xm + m * groups + b)));
            __m512i sum = _mm512_sub_epi32(_mm512_add_epi32(_mm512_slli_epi32(hi, 6), lo), over);
            acc[m] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum),
                                     _mm512_mul_ps(d, _mm512_set1_ps(xs[m * groups + b])), acc[m]);
        }
    }
    for (int m = 0; m < MB; m++) _mm512_storeu_ps(out + TILE * m, acc[m]);
}
#elif defined(RL_AVX2)
/* Keeps a value in a register and the additions below in pairs: left alone, compilers make one long chain of
 * them, for which the processor's window is too short. */
#define HOLD(v) __asm__("" : "+x"(v))
#define PAIR(add, multiply, c)                                                                               \
    add(multiply(w[c], _mm256_set1_epi32(four(x + 4 * (c)))),                                                \
        multiply(w[(c) + 1], _mm256_set1_epi32(four(x + 4 * (c) + 4))))
#define EIGHT(add, multiply)                                                                                 \
    __m256i p0 = PAIR(add, multiply, 0), p1, p2, p3;                                                         \
    HOLD(p0);                                                                                                \
    p1 = PAIR(add, multiply, 2);                                                                             \
    HOLD(p1);                                                                                                \
    p0 = add(p0, p1);                                                                                        \
    p2 = PAIR(add, multiply, 4);                                                                             \
    HOLD(p2);                                                                                                \
    p3 = PAIR(add, multiply, 6);                                                                             \
    HOLD(p3);                                                                                                \
    return add(p0, add(p2, p3));
/* Eight lines of codes with 32 activations: 16 sums of pairs, which int16 holds (8 * 2 * 15 * 127 = 30480). */
INLINE __m256i dot_q4(const __m256i *w, const int8_t *x) { EIGHT(_mm256_add_epi16, _mm256_maddubs_epi16) }
INLINE __m256i dot_q8(const __m256i *w, const int8_t *x) { EIGHT(_mm256_add_epi32, _mm256_madd_epi16) }
INLINE void tile_q4(TILE_ARGS, const int MB, const int P) {
    __m256 acc[2][MB];
    const __m256i low = _mm256_set1_epi8(15);
    for (int h = 0; h < 2; h++)
        for (int m = 0; m < MB; m++) acc[h][m] = _mm256_setzero_ps();
    for (int b = 0; b < groups; b++, t += Q4_BYTES) {
        for (int c = 0; c < 5; c++) _mm_prefetch((const char *)t + 64 * c + 2048, _MM_HINT_T0);
#pragma GCC unroll 2
        for (int h = 0; h < 2; h++) {
            __m256 d = _mm256_cvtph_ps(_mm_loadu_si128((const void *)(t + 16 * h)));
            __m256 mn = _mm256_cvtph_ps(_mm_loadu_si128((const void *)(t + 32 + 16 * h)));
            __m256i w[8];
#pragma GCC unroll 4
            for (int c = 0; c < 4; c++) {
                __m256i p = _mm256_loadu_si256((const void *)(t + 64 + 64 * c + 32 * h));
                w[c] = _mm256_and_si256(p, low);
                w[c + 4] = _mm256_and_si256(_mm256_srli_epi16(p, 4), low);
            }
            for (int c = 0; c < 8; c++) HOLD(w[c]);
#pragma GCC unroll 1
            for (int m = 0; m < MB; m++) {
                const int8_t *x = xq + m * stride + b * P * GROUP;
                __m256i s = _mm256_madd_epi16(dot_q4(w, x), _mm256_set1_epi16(P == 2 ? 64 : 1));
                if (P == 2)
                    s = _mm256_add_epi32(s, _mm256_madd_epi16(dot_q4(w, x + GROUP), _mm256_set1_epi16(1)));
                __m256 a = _mm256_fmadd_ps(mn, _mm256_set1_ps(xm[m * groups + b]), acc[h][m]);
                acc[h][m] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(s),
                                            _mm256_mul_ps(d, _mm256_set1_ps(xs[m * groups + b])), a);
            }
        }
    }
    for (int m = 0; m < MB; m++)
        for (int h = 0; h < 2; h++) _mm256_storeu_ps(out + TILE * m + 8 * h, acc[h][m]);
}
INLINE void tile_q8(TILE_ARGS, const int MB) {
    __m256 acc[2][MB];
    (void)xm;
    for (int h = 0; h < 2; h++)
        for (int m = 0; m < MB; m++) acc[h][m] = _mm256_setzero_ps();
    for (int b = 0; b < groups; b++, t += Q8_BYTES) {
        for (int c = 0; c < 9; c++) _mm_prefetch((const char *)t + 64 * c + 2048, _MM_HINT_T0);
#pragma GCC unroll 2
        for (int h = 0; h < 2; h++) {
            __m256 d = _mm256_cvtph_ps(_mm_loadu_si128((const void *)(t + 16 * h)));
            __m256i s[MB];
#pragma GCC unroll 2
            for (int half = 0; half < 2; half++) {
                __m256i w[8]; /* even and odd bytes of four lines, widened in place */
#pragma GCC unroll 4
                for (int c = 0; c < 4; c++) {
                    __m256i p = _mm256_loadu_si256((const void *)(t + 32 + 64 * (4 * half + c) + 32 * h));
                    w[2 * c] = _mm256_srai_epi16(_mm256_slli_epi16(p, 8), 8);
                    w[2 * c + 1] = _mm256_srai_epi16(p, 8);
                }
                for (int c = 0; c < 8; c++) HOLD(w[c]);
#pragma GCC unroll 1
                for (int m = 0; m < MB; m++) {
                    const int8_t *x = xq + m * stride + b * 2 * GROUP + 32 * half;
                    __m256i v = dot_q8(w, x);
                    if (half == 0) {
                        s[m] = v;
                        continue;
                    }
                    __m256 f = _mm256_cvtepi32_ps(_mm256_add_epi32(s[m], v));
                    acc[h][m] =
                        _mm256_fmadd_ps(f, _mm256_mul_ps(d, _mm256_set1_ps(xs[m * groups + b])), acc[h][m]);
                }
            }
        }
    }
    for (int m = 0; m < MB; m++)
        for (int h = 0; h < 2; h++) _mm256_storeu_ps(out + TILE * m + 8 * h, acc[h][m]);
}
#else
INLINE void tile_any(TILE_ARGS, const int MB, const int P, const int q4) {
    for (int i = 0; i < TILE * MB; i++) out[i] = 0;
    for (int b = 0; b < groups; b++, t += q4 ? Q4_BYTES : Q8_BYTES) {
        const uint8_t *q = t + (q4 ? 64 : 32);
        uint16_t half[32];
        float d[TILE], mn[TILE];
        memcpy(half, t, q4 ? 64 : 32);
        for (int r = 0; r < TILE; r++) {
            d[r] = half_to_float(half[r]);
            mn[r] = q4 ? half_to_float(half[16 + r]) : 0;
        }
        for (int m = 0; m < MB; m++) {
            const int8_t *x = xq + m * stride + b * P * GROUP;
            int32_t s[TILE] = {0};
            for (int c = 0; c < 8; c++)
                for (int r = 0; r < TILE; r++)
                    for (int j = 0; j < 4; j++) {
                        int w = q4 ? (c < 4 ? q[64 * c + 4 * r + j] & 15 : q[64 * (c - 4) + 4 * r + j] >> 4)
                                   : (int8_t)q[64 * c + 4 * r + j];
                        s[r] += w * (P == 2 ? 64 * x[4 * c + j] + x[GROUP + 4 * c + j] : x[4 * c + j]);
                    }
            for (int r = 0; r < TILE; r++) {
                float a = q4 ? fmaf(mn[r], xm[m * groups + b], out[TILE * m + r]) : out[TILE * m + r];
                out[TILE * m + r] = fmaf((float)s[r], d[r] * xs[m * groups + b], a);
            }
        }
    }
}
INLINE void tile_q4(TILE_ARGS, const int MB, const int P) {
    tile_any(t, groups, xq, xs, xm, stride, out, MB, P, 1);
}
INLINE void tile_q8(TILE_ARGS, const int MB) { tile_any(t, groups, xq, xs, xm, stride, out, MB, 2, 0); }
#endif

#define Q4_OF(MB, P)                                                                                         \
    static __attribute__((noinline)) void q4_##MB##_##P(TILE_ARGS) {                                         \
        tile_q4(t, groups, xq, xs, xm, stride, out, MB, P);                                                  \
    }
#define Q8_OF(MB)                                                                                            \
    static __attribute__((noinline)) void q8_##MB(TILE_ARGS) {                                               \
        tile_q8(t, groups, xq, xs, xm, stride, out, MB);                                                     \
    }
Q4_OF(1, 1)
Q4_OF(2, 1)
Q4_OF(4, 1)
Q4_OF(8, 1) Q4_OF(1, 2) Q4_OF(2, 2) Q4_OF(4, 2) Q4_OF(8, 2) Q8_OF(1) Q8_OF(2) Q8_OF(4) Q8_OF(8)

    static void tile_product(int kernel, const uint8_t *t, int groups, int64_t stride, const int8_t *q,
                             const float *s, const float *u, int m, float *o) {
    typedef void (*tile_fn)(TILE_ARGS);
    static const tile_fn table[3][4] = {
        {q4_8_1, q4_4_1, q4_2_1, q4_1_1}, {q4_8_2, q4_4_2, q4_2_2, q4_1_2}, {q8_8, q8_4, q8_2, q8_1}};
    for (int i = 0, mb = 8; i < 4; i++, mb >>= 1)
        while (m >= mb) {
            table[kernel][i](t, groups, q, s, u, stride, o);
            q += mb * stride;
            s += mb * groups;
            u += mb * groups;
            o += mb * TILE;
            m -= mb;
        }
}
