/* Integer dot products in plain C: the same functions as tile_int_avx2.h for any machine.
 *
 * Simple loops that a compiler can vectorise; the order of float additions is the same as in the
 * AVX2 file, block after block. */
#ifndef IGN_TILE_INT_PLAIN_H
#define IGN_TILE_INT_PLAIN_H

#include "panel.h"
#include "vector.h"

/* Dot products of 8 outputs with one block of a token row; codes are [8][8 outputs][4 inputs]. */
INLINE i8 block_dot_unsigned(const uint8_t *codes, const int8_t *q) {
    i8 dot = {0};
    for (int j = 0; j < 8; j++)
        for (int n = 0; n < LANES; n++)
            for (int k = 0; k < 4; k++) dot[n] += codes[32 * j + 4 * n + k] * q[4 * j + k];
    return dot;
}

INLINE i8 block_dot_signed(const int8_t *codes, const int8_t *q) {
    i8 dot = {0};
    for (int j = 0; j < 8; j++)
        for (int n = 0; n < LANES; n++)
            for (int k = 0; k < 4; k++) dot[n] += codes[32 * j + 4 * n + k] * q[4 * j + k];
    return dot;
}

INLINE void expand_q4(const uint8_t *panel, int blocks, expanded *e) {
    const uint8_t *scales = panel + (size_t)blocks * Q4_CODE_BYTES;
    for (int g = 0; g < blocks; g++) {
        for (int j = 0; j < 4; j++)
            for (int i = 0; i < 32; i++) {
                uint8_t raw = panel[g * Q4_CODE_BYTES + 32 * j + i];
                e->codes[g * 256 + 64 * j + i] = raw & 15;
                e->codes[g * 256 + 64 * j + 32 + i] = raw >> 4;
            }
        const uint16_t *half = (const uint16_t *)(scales + g * Q4_SCALE_BYTES);
        f8_store(e->steps + g * LANES, f8_load_half(half));
        f8_store(e->minimums + g * LANES, f8_load_half(half + LANES));
    }
}

INLINE void tile_q4_expanded(const expanded *e, int blocks, const rows_in *x, float *out,
                             int stride, const uint8_t *const *ahead, const int P, const int R) {
    (void)ahead;
    for (int p = 0; p < P; p++)
        for (int r = 0; r < R; r++) {
            f8 acc = f8_set(0);
            for (int g = 0; g < blocks; g++) {
                const int8_t *q = x->codes + (size_t)r * x->code_stride + g * BLOCK;
                f8 dot = f8_of_i8(block_dot_unsigned(e[p].codes + g * 256, q));
                f8 step = f8_load(e[p].steps + g * LANES);
                acc = f8_fma(step * x->scales[r * x->block_stride + g], dot, acc);
                acc = f8_fma(f8_load(e[p].minimums + g * LANES),
                             f8_set(x->sums[r * x->block_stride + g]), acc);
            }
            f8_store(out + (size_t)r * stride + p * LANES, acc);
        }
}

INLINE void tile_q8(const uint8_t *panel, int blocks, const rows_in *x, float *out, int stride,
                    const int R) {
    const uint16_t *scales = (const uint16_t *)(panel + (size_t)blocks * Q8_CODE_BYTES);
    for (int r = 0; r < R; r++) {
        f8 acc = f8_set(0);
        for (int g = 0; g < blocks; g++) {
            const int8_t *q = x->codes + (size_t)r * x->code_stride + g * BLOCK;
            f8 dot = f8_of_i8(block_dot_signed((const int8_t *)panel + g * Q8_CODE_BYTES, q));
            f8 step = f8_load_half(scales + g * LANES);
            acc = f8_fma(step * x->scales[r * x->block_stride + g], dot, acc);
        }
        f8_store(out + (size_t)r * stride, acc);
    }
}

#endif
