/* A decode step's calls run by one team of threads, without a way back to the caller between them. */
#include "kernels.h"

typedef struct {
    int32_t kind, padding;
    const void *matrix, *arguments; /* rl_matrix and rl_product, or NULL and rl_attention */
} rl_call;

enum { MULTIPLY = 0, ATTEND = 1 };

/* rows and chunks stand in for those that the calls were recorded with. */
void rl_run(const rl_call *calls, int count, int rows, int chunks, int threads) {
#pragma omp parallel num_threads(threads)
    for (int i = 0; i < count; i++) {
        if (calls[i].kind == MULTIPLY) {
            rl_product product = *(const rl_product *)calls[i].arguments;
            product.rows = rows;
            rl_multiply_team(calls[i].matrix, &product);
        } else {
            rl_attention attention = *(const rl_attention *)calls[i].arguments;
            attention.rows = rows;
            attention.chunks = chunks;
            rl_attend_team(&attention);
        }
#pragma omp barrier
    }
}

int rl_call_bytes(void) { return sizeof(rl_call); }
