/* Row-wise pieces between products: norm, quantisation, rotary embedding, gated activation. */
#ifndef IGN_ACTIVATION_H
#define IGN_ACTIVATION_H

#include "vector.h"

/* Quantises one block of 32 floats to int8 with its own scale. */
INLINE void quantise_block(const f8 v[4], int8_t *codes, float *scale, float *sum,
                           int32_t *code_sum) {
    f8 top = f8_max(f8_max(f8_abs(v[0]), f8_abs(v[1])), f8_max(f8_abs(v[2]), f8_abs(v[3])));
    float largest = f8_largest(top);
    float step = largest / 127.0f, inverse = largest > 0 ? 127.0f / largest : 0;
    i8 q[4], total = {0};
    for (int i = 0; i < 4; i++) {
        q[i] = f8_round(v[i] * inverse);
        total += q[i];
    }
#ifdef IGN_AVX2
    /* The packs interleave 128-bit halves; the permutation restores the order. */
    __m256i low = _mm256_packs_epi32((__m256i)q[0], (__m256i)q[1]);
    __m256i high = _mm256_packs_epi32((__m256i)q[2], (__m256i)q[3]);
    __m256i bytes = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(low, high),
                                                _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    _mm256_storeu_si256((__m256i *)codes, bytes);
#else
    for (int i = 0; i < BLOCK; i++) codes[i] = (int8_t)q[i / LANES][i % LANES];
#endif
    int32_t all = 0;
    for (int i = 0; i < LANES; i++) all += total[i];
    *scale = step;
    *sum = step * (float)all;
    *code_sum = all;
}

INLINE void quantise_row(const float *x, int width, int8_t *codes, float *scales, float *sums,
                         int32_t *code_sums) {
    for (int g = 0; g < width / BLOCK; g++) {
        f8 v[4];
        for (int i = 0; i < 4; i++) v[i] = f8_load(x + g * BLOCK + i * LANES);
        quantise_block(v, codes + g * BLOCK, scales + g, sums + g, code_sums + g);
    }
}

/* 1 / sqrt(mean(x^2) + epsilon). */
INLINE float inverse_rms(const float *x, int width, float epsilon) {
    f8 total = f8_set(0);
    for (int i = 0; i < width; i += LANES) {
        f8 v = f8_load(x + i);
        total = f8_fma(v, v, total);
    }
    return 1.0f / sqrtf(f8_sum(total) / (float)width + epsilon);
}

INLINE void norm_quantise(const float *x, const float *weight, float epsilon, int8_t *codes,
                          float *scales, float *sums, int32_t *code_sums) {
    float inverse = inverse_rms(x, HIDDEN, epsilon);
    for (int g = 0; g < HIDDEN / BLOCK; g++) {
        f8 v[4];
        for (int i = 0; i < 4; i++) {
            int at = g * BLOCK + i * LANES;
            v[i] = f8_load(x + at) * inverse * f8_load(weight + at);
        }
        quantise_block(v, codes + g * BLOCK, scales + g, sums + g, code_sums + g);
    }
}

INLINE void norm_row(const float *x, const float *weight, int width, float epsilon, float *out) {
    float inverse = inverse_rms(x, width, epsilon);
    for (int i = 0; i < width; i += LANES)
        f8_store(out + i, f8_load(x + i) * inverse * f8_load(weight + i));
}

/* Rotates one head in place; the halves of the head are the two coordinates. */
INLINE void rotate(float *head, const float *cosines, const float *sines) {
    enum { HALF = HEAD / 2 };
    for (int i = 0; i < HALF; i++) {
        float a = head[i], b = head[i + HALF];
        head[i] = a * cosines[i] - b * sines[i];
        head[i + HALF] = b * cosines[i] + a * sines[i];
    }
}

#endif
