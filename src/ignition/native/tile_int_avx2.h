/* Integer dot products on AVX2: a tile of P weight panels (8 outputs each) by R token rows.
 *
 * Panel bytes are ordered so that one 32-byte load holds 4 consecutive inputs of 8 outputs, and
 * maddubs multiplies it with 4 activation bytes broadcast to all lanes. For 4-bit codes a whole
 * block of 32 inputs fits into int16 sums (8 steps * 2 * 15 * 127 = 30480), so a block costs one
 * widening only. Integer sums are exact; floats are added block after block in the same order for
 * every tile shape, so a row's result does not depend on how many rows were computed with it. */
#ifndef IGN_TILE_INT_AVX2_H
#define IGN_TILE_INT_AVX2_H

#include "panel.h"
#include "vector.h"

INLINE __m256i broadcast4(const int8_t *p) {
    int32_t four;
    memcpy(&four, p, sizeof four);
    return _mm256_set1_epi32(four);
}

/* Pins a running sum to a register. Without it the compiler reorders the exact integer sums into
 * trees whose many terms do not fit the registers, and spends its time spilling them. */
#define PIN(v) __asm__("" : "+x"(v))

INLINE __m256i load32(const void *p) { return _mm256_loadu_si256((const __m256i *)p); }

/* Weights stream from memory once per step and a core waits for them, so lines are requested this
 * far ahead. Reading past the end of a matrix is harmless: a prefetch never faults. */
enum { AHEAD = 8192 };

/* Requests the lines of `bytes` weight bytes that follow `p` at the prefetch distance. */
INLINE void fetch_ahead(const uint8_t *p, const int bytes) {
    for (int i = 0; i < bytes; i += 64) _mm_prefetch((const char *)p + AHEAD + i, _MM_HINT_T0);
}

/* Adds a block's contribution: minimum * (scale * sum) + (step * scale) * dot. */
INLINE f8 add_q4_block(f8 acc, __m256i dot16, f8 step, f8 minimum, float scale, float sum) {
    __m256i dot = _mm256_madd_epi16(dot16, _mm256_set1_epi16(1));
    acc = f8_fma(step * f8_set(scale), _mm256_cvtepi32_ps(dot), acc);
    return f8_fma(minimum, f8_set(sum), acc);
}

/* One panel as stored, R rows: unpacks nibbles on the fly. For few rows. */
INLINE void tile_q4_direct(const uint8_t *panel, int blocks, const rows_in *x, float *out,
                           int stride, const int R) {
    const __m256i low = _mm256_set1_epi8(15);
    const uint8_t *codes = panel, *scales = panel + (size_t)blocks * Q4_CODE_BYTES;
    f8 acc[6];
    for (int r = 0; r < R; r++) acc[r] = f8_set(0);
    for (int g = 0; g < blocks; g++) {
        __m256i dot[6];
        fetch_ahead(panel + g * (Q4_CODE_BYTES + Q4_SCALE_BYTES), Q4_CODE_BYTES + Q4_SCALE_BYTES);
        for (int r = 0; r < R; r++) dot[r] = _mm256_setzero_si256();
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++) {
            __m256i raw = load32(codes + g * Q4_CODE_BYTES + 32 * j);
            __m256i even = _mm256_and_si256(raw, low);
            __m256i odd = _mm256_and_si256(_mm256_srli_epi16(raw, 4), low);
#pragma GCC unroll 6
            for (int r = 0; r < R; r++) {
                const int8_t *q = x->codes + (size_t)r * x->code_stride + g * BLOCK + 8 * j;
                __m256i a = _mm256_maddubs_epi16(even, broadcast4(q));
                __m256i b = _mm256_maddubs_epi16(odd, broadcast4(q + 4));
                dot[r] = _mm256_add_epi16(dot[r], _mm256_add_epi16(a, b));
                PIN(dot[r]);
            }
        }
        f8 step = f8_load_half((const uint16_t *)(scales + g * Q4_SCALE_BYTES));
        f8 minimum = f8_load_half((const uint16_t *)(scales + g * Q4_SCALE_BYTES) + LANES);
#pragma GCC unroll 6
        for (int r = 0; r < R; r++)
            acc[r] = add_q4_block(acc[r], dot[r], step, minimum, x->scales[r * x->block_stride + g],
                                  x->sums[r * x->block_stride + g]);
    }
    for (int r = 0; r < R; r++) f8_store(out + (size_t)r * stride, acc[r]);
}

/* Unpacks a panel to one byte per code and float scales, to be used by many rows. */
INLINE void expand_q4(const uint8_t *panel, int blocks, expanded *e) {
    const __m256i low = _mm256_set1_epi8(15);
    const uint8_t *scales = panel + (size_t)blocks * Q4_CODE_BYTES;
    for (int g = 0; g < blocks; g++) {
        for (int j = 0; j < 4; j++) {
            __m256i raw = load32(panel + g * Q4_CODE_BYTES + 32 * j);
            uint8_t *to = e->codes + g * 256 + 64 * j;
            _mm256_store_si256((__m256i *)to, _mm256_and_si256(raw, low));
            _mm256_store_si256((__m256i *)(to + 32),
                               _mm256_and_si256(_mm256_srli_epi16(raw, 4), low));
        }
        const uint16_t *half = (const uint16_t *)(scales + g * Q4_SCALE_BYTES);
        f8_store(e->steps + g * LANES, f8_load_half(half));
        f8_store(e->minimums + g * LANES, f8_load_half(half + LANES));
    }
}

/* P expanded panels by R rows. `ahead`, unless NULL, are the addresses of weights that will be
 * unpacked next: FETCH_BYTES of each are requested per block, so that memory is busy meanwhile. */
INLINE void tile_q4_expanded(const expanded *e, int blocks, const rows_in *x, float *out,
                             int stride, const uint8_t *const *ahead, const int P, const int R) {
    f8 acc[2][4];
    for (int p = 0; p < P; p++)
        for (int r = 0; r < R; r++) acc[p][r] = f8_set(0);
    for (int g = 0; g < blocks; g++) {
        __m256i dot[2][4];
        if (ahead)
            for (int p = 0; p < P; p++)
                _mm_prefetch((const char *)ahead[p] + g * FETCH_BYTES, _MM_HINT_T0);
#pragma GCC unroll 8
        for (int j = 0; j < 8; j++) {
            __m256i w[2];
            for (int p = 0; p < P; p++)
                w[p] = _mm256_load_si256((const __m256i *)(e[p].codes + g * 256 + 32 * j));
#pragma GCC unroll 4
            for (int r = 0; r < R; r++) {
                __m256i q =
                    broadcast4(x->codes + (size_t)r * x->code_stride + g * BLOCK + 4 * j);
                for (int p = 0; p < P; p++) {
                    __m256i product = _mm256_maddubs_epi16(w[p], q);
                    dot[p][r] = j == 0 ? product : _mm256_add_epi16(dot[p][r], product);
                    PIN(dot[p][r]);
                }
            }
        }
#pragma GCC unroll 4
        for (int r = 0; r < R; r++) {
            float scale = x->scales[r * x->block_stride + g];
            float sum = x->sums[r * x->block_stride + g];
            for (int p = 0; p < P; p++)
                acc[p][r] = add_q4_block(acc[p][r], dot[p][r], f8_load(e[p].steps + g * LANES),
                                         f8_load(e[p].minimums + g * LANES), scale, sum);
        }
    }
    for (int p = 0; p < P; p++)
        for (int r = 0; r < R; r++) f8_store(out + (size_t)r * stride + p * LANES, acc[p][r]);
}

/* One 8-bit panel by R rows. maddubs wants one unsigned operand: |w| * (sign(w) * x) is w * x. */
INLINE void tile_q8(const uint8_t *panel, int blocks, const rows_in *x, float *out, int stride,
                    const int R) {
    const uint16_t *scales = (const uint16_t *)(panel + (size_t)blocks * Q8_CODE_BYTES);
    const __m256i ones = _mm256_set1_epi16(1);
    f8 acc[4];
    for (int r = 0; r < R; r++) acc[r] = f8_set(0);
    for (int g = 0; g < blocks; g++) {
        __m256i dot[4];
        fetch_ahead(panel + g * (Q8_CODE_BYTES + Q8_SCALE_BYTES), Q8_CODE_BYTES + Q8_SCALE_BYTES);
        for (int r = 0; r < R; r++) dot[r] = _mm256_setzero_si256();
#pragma GCC unroll 8
        for (int j = 0; j < 8; j++) {
            __m256i w = load32(panel + g * Q8_CODE_BYTES + 32 * j);
            __m256i magnitude = _mm256_abs_epi8(w);
#pragma GCC unroll 4
            for (int r = 0; r < R; r++) {
                __m256i q =
                    broadcast4(x->codes + (size_t)r * x->code_stride + g * BLOCK + 4 * j);
                __m256i product = _mm256_maddubs_epi16(magnitude, _mm256_sign_epi8(q, w));
                dot[r] = _mm256_add_epi32(dot[r], _mm256_madd_epi16(product, ones));
                PIN(dot[r]);
            }
        }
        f8 step = f8_load_half(scales + g * LANES);
#pragma GCC unroll 4
        for (int r = 0; r < R; r++)
            acc[r] = f8_fma(step * f8_set(x->scales[r * x->block_stride + g]),
                            _mm256_cvtepi32_ps(dot[r]), acc[r]);
    }
    for (int r = 0; r < R; r++) f8_store(out + (size_t)r * stride, acc[r]);
}

#endif
