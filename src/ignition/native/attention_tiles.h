/* Register tiles of attention: scores and weighted values of a few queries over one span. */
#ifndef IGN_ATTENTION_TILES_H
#define IGN_ATTENTION_TILES_H

#include "vector.h"

#ifdef IGN_FLOAT32
typedef float kv_element;
#define load_kv f8_load
#define store_kv f8_store
#else
typedef uint16_t kv_element;
#define load_kv f8_load_half
#define store_kv f8_store_half
#endif

/* Transposes eight positions by eight dimensions; output rows are SPAN apart. */
INLINE void transpose8(const f8 in[8], float *out) {
#ifdef IGN_AVX2
    __m256 a[8], b[8];
    for (int i = 0; i < 8; i += 2) {
        a[i] = _mm256_unpacklo_ps(in[i], in[i + 1]);
        a[i + 1] = _mm256_unpackhi_ps(in[i], in[i + 1]);
    }
    for (int i = 0; i < 8; i += 4)
        for (int k = 0; k < 2; k++) {
            b[i + 2 * k] = _mm256_shuffle_ps(a[i + k], a[i + k + 2], 0x44);
            b[i + 2 * k + 1] = _mm256_shuffle_ps(a[i + k], a[i + k + 2], 0xee);
        }
    for (int i = 0; i < 4; i++) {
        f8_store(out + i * SPAN, _mm256_permute2f128_ps(b[i], b[i + 4], 0x20));
        f8_store(out + (i + 4) * SPAN, _mm256_permute2f128_ps(b[i], b[i + 4], 0x31));
    }
#else
    for (int d = 0; d < 8; d++)
        for (int t = 0; t < 8; t++) out[d * SPAN + t] = in[t][d];
#endif
}

/* Scores of R queries with V * 8 positions; keys are [HEAD][SPAN]. */
INLINE void score_tile(const float *keys, const float *queries, float *scores, const int R,
                       const int V) {
    f8 acc[6][4];
    for (int r = 0; r < R; r++)
        for (int v = 0; v < V; v++) acc[r][v] = f8_set(0);
    for (int d = 0; d < HEAD; d++) {
        f8 k[4];
        for (int v = 0; v < V; v++) k[v] = f8_load(keys + d * SPAN + v * LANES);
#pragma GCC unroll 6
        for (int r = 0; r < R; r++) {
            f8 q = f8_set(queries[r * HEAD + d]);
            for (int v = 0; v < V; v++) acc[r][v] = f8_fma(q, k[v], acc[r][v]);
        }
    }
    for (int r = 0; r < R; r++)
        for (int v = 0; v < V; v++) f8_store(scores + r * SPAN + v * LANES, acc[r][v]);
}

INLINE void score_tiles(const float *keys, const float *queries, float *scores, int padded,
                        const int R, const int V) {
    int t = 0;
    for (; t + V * LANES <= padded; t += V * LANES)
        score_tile(keys + t, queries, scores + t, R, V);
    for (; t < padded; t += LANES) score_tile(keys + t, queries, scores + t, R, 1);
}

/* Scores of 6, 3 or 1 queries with the first `padded` positions (a multiple of 8) of a span. */
static inline void score_rows(const float *keys, const float *queries, float *scores, int padded,
                              int count) {
    if (count == 6)
        score_tiles(keys, queries, scores, padded, 6, 2);
    else if (count == 3)
        score_tiles(keys, queries, scores, padded, 3, 4);
    else
        score_tiles(keys, queries, scores, padded, 1, 4);
}

/* Adds the weighted values of `length` positions to V * 8 dimensions of R outputs. Values are
 * floats [SPAN][HEAD], or as cached when IS_CACHED. */
INLINE void weigh_tile(const void *values, int dimension, const float *weights, float *output,
                       int length, const int R, const int V, const int IS_CACHED) {
    f8 acc[6][4];
    for (int r = 0; r < R; r++)
        for (int v = 0; v < V; v++)
            acc[r][v] = f8_load(output + r * HEAD + dimension + v * LANES);
    for (int t = 0; t < length; t++) {
        f8 x[4];
        for (int v = 0; v < V; v++) {
            int at = dimension + v * LANES;
            x[v] = IS_CACHED ? load_kv((const kv_element *)values + (size_t)t * KV_WIDTH + at)
                             : f8_load((const float *)values + (size_t)t * HEAD + at);
        }
#pragma GCC unroll 6
        for (int r = 0; r < R; r++) {
            f8 p = f8_set(weights[r * SPAN + t]);
            for (int v = 0; v < V; v++) acc[r][v] = f8_fma(p, x[v], acc[r][v]);
        }
    }
    for (int r = 0; r < R; r++)
        for (int v = 0; v < V; v++)
            f8_store(output + r * HEAD + dimension + v * LANES, acc[r][v]);
}

INLINE void weigh_tiles(const void *values, const float *weights, float *output, int length,
                        const int R, const int V, const int IS_CACHED) {
    int d = 0;
    for (; d + V * LANES <= HEAD; d += V * LANES)
        weigh_tile(values, d, weights, output, length, R, V, IS_CACHED);
    for (; d < HEAD; d += LANES) weigh_tile(values, d, weights, output, length, R, 1, IS_CACHED);
}

/* Adds weighted values, converted to floats before, to 6, 3 or 1 outputs. */
static inline void weigh_rows(const float *values, const float *weights, float *output, int length,
                              int count) {
    if (count == 6)
        weigh_tiles(values, weights, output, length, 6, 2, 0);
    else if (count == 3)
        weigh_tiles(values, weights, output, length, 3, 4, 0);
    else
        weigh_tiles(values, weights, output, length, 1, 4, 0);
}

/* The same for 3 or 1 outputs, from values as they are cached. */
static inline void weigh_rows_direct(const kv_element *values, const float *weights, float *output,
                                     int length, int count) {
    if (count == 3)
        weigh_tiles(values, weights, output, length, 3, 4, 1);
    else
        weigh_tiles(values, weights, output, length, 1, 4, 1);
}

/* Hides the positions from `visible` on: their weight becomes zero. */
INLINE void hide_scores(float *scores, int visible, int padded) {
    const i8 lanes = {0, 1, 2, 3, 4, 5, 6, 7};
    for (int t = visible / LANES * LANES; t < padded; t += LANES)
        f8_store(scores + t,
                 f8_select(lanes + t < visible, f8_load(scores + t), f8_set(-INFINITY)));
}

INLINE float largest_score(const float *scores, int padded) {
    f8 top = f8_load(scores);
    for (int t = LANES; t < padded; t += LANES) top = f8_max(f8_load(scores + t), top);
    return f8_largest(top);
}

#endif
