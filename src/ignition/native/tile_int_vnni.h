/* Integer dot products with AVX-512 VNNI: a tile of two weight panels (16 outputs) by R token rows.
 *
 * A 64-byte vector holds 4 consecutive inputs of 8 outputs of either panel. dpbusd multiplies it
 * with 4 activation bytes broadcast to all lanes and adds to int32 sums, so a step of a row is one
 * instruction. Integer sums are exact and floats are added in the order of tile_int_avx2.h, so a row
 * has the same bits whichever of the two computed it. */
#ifndef IGN_TILE_INT_VNNI_H
#define IGN_TILE_INT_VNNI_H

#include "panel.h"
#include "vector.h"

enum { WIDE_ROWS = 12 }; /* two sums per row, and 8 registers for the rest */

/* Pins a running sum to a register, as PIN does in tile_int_avx2.h. */
#define PIN_WIDE(v) __asm__("" : "+v"(v))

/* Two panels are two streams in neighbouring pages. Lines requested into the first level for both
 * push each other out before they are used, so they go to the second, and farther ahead. */
enum { AHEAD_FAR = 16384 };

INLINE void fetch_far(const uint8_t *p, const int bytes) {
    for (int i = 0; i < bytes; i += 64)
        _mm_prefetch((const char *)p + AHEAD_FAR + i, _MM_HINT_T1);
}

INLINE __m512i broadcast_input(const rows_in *x, int row, int input) {
    int32_t four;
    memcpy(&four, x->codes + (size_t)row * x->code_stride + input, sizeof four);
    return _mm512_set1_epi32(four);
}

/* 32 bytes of either panel. */
INLINE __m512i load_both(const uint8_t *a, const uint8_t *b) {
    __m512i low = _mm512_castsi256_si512(_mm256_loadu_si256((const __m256i *)a));
    return _mm512_inserti64x4(low, _mm256_loadu_si256((const __m256i *)b), 1);
}

/* 8 half-precision numbers of either panel. */
INLINE __m512 load_halves(const uint8_t *a, const uint8_t *b) {
    __m256i low = _mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)a));
    return _mm512_cvtph_ps(_mm256_inserti128_si256(low, _mm_loadu_si128((const __m128i *)b), 1));
}

INLINE __m512 add_scaled(__m512 acc, __m512 step, float scale, __m512i dot) {
    __m512 both = _mm512_mul_ps(step, _mm512_set1_ps(scale));
    return _mm512_fmadd_ps(both, _mm512_cvtepi32_ps(dot), acc);
}

INLINE void store_rows(const __m512 *acc, float *out, int stride, const int R) {
    for (int r = 0; r < R; r++) _mm512_storeu_ps(out + (size_t)r * stride, acc[r]);
}

/* Two 4-bit panels by R rows; nibbles are unpacked on the fly, which costs less here than to keep
 * unpacked panels for any number of rows. */
INLINE void tile_q4_wide(const uint8_t *const *panels, int blocks, const rows_in *x, float *out,
                         int stride, const int R) {
    const __m512i low = _mm512_set1_epi8(15);
    const uint8_t *a = panels[0], *b = panels[1];
    __m512 acc[WIDE_ROWS];
    for (int r = 0; r < R; r++) acc[r] = _mm512_setzero_ps();
    for (int g = 0; g < blocks; g++) {
        __m512i dot[WIDE_ROWS];
        for (int p = 0; p < 2; p++)
            fetch_far(panels[p] + g * (Q4_CODE_BYTES + Q4_SCALE_BYTES),
                      Q4_CODE_BYTES + Q4_SCALE_BYTES);
        for (int r = 0; r < R; r++) dot[r] = _mm512_setzero_si512();
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++) {
            const int code = g * Q4_CODE_BYTES + 32 * j, input = g * BLOCK + 8 * j;
            __m512i raw = load_both(a + code, b + code);
            __m512i even = _mm512_and_si512(raw, low);
            __m512i odd = _mm512_and_si512(_mm512_srli_epi32(raw, 4), low);
#pragma GCC unroll 12
            for (int r = 0; r < R; r++) {
                dot[r] = _mm512_dpbusd_epi32(dot[r], even, broadcast_input(x, r, input));
                dot[r] = _mm512_dpbusd_epi32(dot[r], odd, broadcast_input(x, r, input + 4));
                PIN_WIDE(dot[r]);
            }
        }
        const int scale = blocks * Q4_CODE_BYTES + g * Q4_SCALE_BYTES;
        const int half = scale + Q4_SCALE_BYTES / 2;
        __m512 step = load_halves(a + scale, b + scale), minimum = load_halves(a + half, b + half);
#pragma GCC unroll 12
        for (int r = 0; r < R; r++) {
            const int at = r * x->block_stride + g;
            acc[r] = add_scaled(acc[r], step, x->scales[at], dot[r]);
            acc[r] = _mm512_fmadd_ps(minimum, _mm512_set1_ps(x->sums[at]), acc[r]);
        }
    }
    store_rows(acc, out, stride, R);
}

/* Two 8-bit panels by R rows. Codes are read as w + 128, because dpbusd wants one unsigned operand,
 * and 128 * sum(x) is taken off beforehand. */
INLINE void tile_q8_wide(const uint8_t *const *panels, int blocks, const rows_in *x, float *out,
                         int stride, const int R) {
    const __m512i flip = _mm512_set1_epi8((char)0x80);
    const uint8_t *a = panels[0], *b = panels[1];
    __m512 acc[WIDE_ROWS];
    for (int r = 0; r < R; r++) acc[r] = _mm512_setzero_ps();
    for (int g = 0; g < blocks; g++) {
        __m512i dot[WIDE_ROWS];
        for (int p = 0; p < 2; p++)
            fetch_far(panels[p] + g * (Q8_CODE_BYTES + Q8_SCALE_BYTES),
                      Q8_CODE_BYTES + Q8_SCALE_BYTES);
        for (int r = 0; r < R; r++)
            dot[r] = _mm512_set1_epi32(-128 * x->code_sums[r * x->block_stride + g]);
#pragma GCC unroll 8
        for (int j = 0; j < 8; j++) {
            const int code = g * Q8_CODE_BYTES + 32 * j, input = g * BLOCK + 4 * j;
            __m512i w = _mm512_xor_si512(load_both(a + code, b + code), flip);
#pragma GCC unroll 12
            for (int r = 0; r < R; r++) {
                dot[r] = _mm512_dpbusd_epi32(dot[r], w, broadcast_input(x, r, input));
                PIN_WIDE(dot[r]);
            }
        }
        const int scale = blocks * Q8_CODE_BYTES + g * Q8_SCALE_BYTES;
        __m512 step = load_halves(a + scale, b + scale);
#pragma GCC unroll 12
        for (int r = 0; r < R; r++)
            acc[r] = add_scaled(acc[r], step, x->scales[r * x->block_stride + g], dot[r]);
    }
    store_rows(acc, out, stride, R);
}

#endif
