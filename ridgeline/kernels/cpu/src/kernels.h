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
    int32_t chunks;                  /* most chunks of a row when one row is cut over threads, else 0 */
    const float *qkv;                /* [rows, heads + 2 kv_heads, head_dim], qkv_stride floats a row */
    const float *cosine, *sine;      /* [rows, >= rotary_dim / 2], angle_stride floats a row */
    const float *q_norm, *k_norm;    /* [head_dim] or NULL */
    const int32_t *position, *table; /* [rows]; [rows, table_stride] pages */
    void *keys, *values;             /* page 0's; strides in elements */
    float *out, *queries, *partial;  /* [rows, heads, head_dim]; workspaces */
    int64_t qkv_stride, angle_stride, table_stride, page_stride, slot_stride, head_stride;
} rl_attention;

/* Called by every thread of a team; all have to come back before the results may be read. */
void rl_multiply_team(const rl_matrix *w, const rl_product *p);
void rl_attend_team(const rl_attention *a);
