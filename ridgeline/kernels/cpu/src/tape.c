/* A decode step's calls run by one team of threads, without a way back to the caller between them. */
#include "kernels.h"

typedef struct {
    int32_t kind, padding;
    const void *matrix, *arguments; /* rl_matrix and rl_product, or NULL and rl_attention */
} rl_call;

enum { MULTIPLY = 0, ATTEND = 1 };

/* rows and chunks stand in for those that the calls were recorded with. */
void rl_run(const rl_call *calls, int count, int rows, int chunks, int threads) {
    rl_crew crew = {0};
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
#pragma omp single
        crew.threads = omp_get_num_threads(); /* may be fewer than asked for */
        for (int i = 0; i < count; i++) {
            if (calls[i].kind == MULTIPLY) {
                rl_product product = *(const rl_product *)calls[i].arguments;
                product.rows = rows;
                rl_multiply_crew(calls[i].matrix, &product, &crew, omp_get_thread_num());
            } else {
                rl_attention attention = *(const rl_attention *)calls[i].arguments;
                attention.rows = rows;
                attention.chunks = chunks;
                rl_attend_crew(&attention, &crew, omp_get_thread_num());
            }
            meet(&crew);
        }
    }
}

int rl_call_bytes(void) { return sizeof(rl_call); }
