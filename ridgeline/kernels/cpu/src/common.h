/* What the CPU kernels share: instruction sets, half precision, vectors of eight floats.
 *
 * Vectors are the compiler's own (GCC, Clang); intrinsics only where those do not reach. Without AVX2 the
 * same code runs lane by lane.
 */
#pragma once
#include <math.h>
#include <omp.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include <immintrin.h>
#define RL_AVX2 1
#endif
#if defined(RL_AVX2) && defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VNNI__)
#define RL_VNNI 1
#endif
#define INLINE static inline __attribute__((always_inline))

typedef float v8 __attribute__((vector_size(32), aligned(4), may_alias));
typedef int32_t v8i __attribute__((vector_size(32), aligned(4), may_alias));

INLINE float half_to_float(uint16_t h) {
#ifdef RL_AVX2
    return _cvtsh_ss(h);
#else
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = (h >> 10) & 31, fraction = h & 1023, bits;
    if (exponent == 31)
        bits = sign | 0x7f800000u | fraction << 13;
    else if (exponent)
        bits = sign | (exponent + 112) << 23 | fraction << 13;
    else {
        float value = (float)fraction * 0x1p-24f;
        memcpy(&bits, &value, 4);
        bits |= sign;
    }
    float result;
    memcpy(&result, &bits, 4);
    return result;
#endif
}

INLINE uint16_t float_to_bf16(float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    if ((u & 0x7fffffff) > 0x7f800000) return (uint16_t)(u >> 16 | 0x40);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

INLINE void pause_thread(void) {
#ifdef RL_AVX2
    _mm_pause();
#endif
}

INLINE v8 all8(float x) { return (v8){x, x, x, x, x, x, x, x}; }
INLINE v8 pick8(v8i mask, v8 a, v8 b) { return (v8)(((v8i)a & mask) | ((v8i)b & ~mask)); }
INLINE v8 fma8(v8 a, v8 b, v8 c) {
#ifdef RL_AVX2
    return (v8)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
    for (int i = 0; i < 8; i++) c[i] = fmaf(a[i], b[i], c[i]);
    return c;
#endif
}

/* The vector in a register: without this a compiler may read it from memory again for every use. */
INLINE v8 load_once(const float *from) {
    v8 v = *(const v8 *)from;
#ifdef RL_AVX2
    __asm__("" : "+x"(v));
#endif
    return v;
}

/* exp to about 2 ulp on [-87, 88], clamped outside (Cephes' polynomial). NaN stays NaN. */
INLINE v8 exp8(v8 x) {
    v8i bad = x != x;
    v8 given = x;
    x = pick8(x > all8(-87.f), x, all8(-87.f));
    x = pick8(x < all8(88.f), x, all8(88.f));
    v8 n = fma8(x, all8(1.44269504f), all8(12582912.f)) - all8(12582912.f);
    v8 r = fma8(n, all8(2.12194440e-4f), fma8(n, all8(-0.693359375f), x)), p = all8(1.9875691500e-4f);
    p = fma8(p, r, all8(1.3981999507e-3f));
    p = fma8(p, r, all8(8.3334519073e-3f));
    p = fma8(p, r, all8(4.1665795894e-2f));
    p = fma8(p, r, all8(1.6666665459e-1f));
    p = fma8(p, r, all8(5.0000001201e-1f));
    p = fma8(p, r * r, r + all8(1.f));
    return pick8(bad, given, p * (v8)((__builtin_convertvector(n, v8i) + 127) << 23));
}

/* Work of thread `tid` out of `count` equal items: [first, last). */
INLINE int share_first(int count, int tid, int threads) { return (int)((int64_t)count * tid / threads); }
