/* The arguments of the kernels, and the parts of them that a team of threads runs together. */
#pragma once
#include "common.h"

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

typedef struct {
    int32_t rows, heads, kv_heads, head_dim, rotary_dim, bf16, block_size, window, threads;
    float scale, eps;
    int32_t chunks, padding;         /* most chunks of a token when one is cut over threads, else 0 */
    const float *qkv;                /* [rows, heads + 2 kv_heads, head_dim], qkv_stride floats a row */
    const float *cosine, *sine;      /* [rows, >= rotary_dim / 2], angle_stride floats a row */
    const float *q_norm, *k_norm;    /* [head_dim] or NULL */
    const float *sinks;              /* [heads] or NULL: the score of a key more, whose value is zero */
    const int32_t *position, *table; /* [rows]; [sequences, table_stride] pages */
    const int32_t *sequence;         /* [rows]: each row's table, NULL where row i has table i */
    const int32_t *run_start;        /* ascending, the last is rows: successive tokens of a sequence that attend
                                        together, one or at most MAX_GROUP queries a KV head; NULL: each alone */
    void *keys, *values;             /* page 0's; strides in elements */
    float *out, *queries, *partial;  /* [rows, heads, head_dim]; workspaces */
    int64_t qkv_stride, angle_stride, table_stride, page_stride, slot_stride, head_stride;
} rl_attention;

/* Threads that work on one call together. They meet by spinning for a moment and then yielding, since a core
 * may be wanted by somebody else: a barrier that only spins would wait whole time slices for a thread that is
 * not running. */
typedef struct {
    _Atomic int arrived, generation, taken;
    int threads;
} rl_crew;

enum { SPINS = 1000 };

/* Waits for all; afterwards `take` counts from 0 again. */
INLINE void meet(rl_crew *crew) {
    int generation = atomic_load(&crew->generation);
    if (atomic_fetch_add(&crew->arrived, 1) + 1 == crew->threads) {
        atomic_store(&crew->arrived, 0);
        atomic_store(&crew->taken, 0);
        atomic_fetch_add(&crew->generation, 1);
        return;
    }
    for (int spins = 0; atomic_load(&crew->generation) == generation; spins++)
        if (spins < SPINS)
            pause_thread();
        else
            sched_yield();
}

/* The next number that no other thread has taken since the crew last met. */
INLINE int take(rl_crew *crew) { return atomic_fetch_add(&crew->taken, 1); }

/* Called by every thread of a crew, by its number; they have to meet before the results may be read. */
void rl_multiply_crew(const rl_matrix *w, const rl_product *p, rl_crew *crew, int thread);
void rl_attend_crew(const rl_attention *a, rl_crew *crew, int thread);
