/* Eight floats at a time: loads, fused multiply-add, exponential, half precision.
 *
 * Arithmetic is written on GNU vector types, which gcc and clang lower on any machine. Where the
 * AVX2 variant is compiled, the few operations that the type system cannot say are intrinsics. The
 * order of every reduction here is fixed, because a row's result must not depend on its company. */
#ifndef IGN_VECTOR_H
#define IGN_VECTOR_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "shape.h"

#ifdef IGN_AVX2
#include <immintrin.h>
#endif

#define INLINE static inline __attribute__((always_inline))

typedef float f8 __attribute__((vector_size(32)));
typedef int32_t i8 __attribute__((vector_size(32)));

INLINE f8 f8_load(const float *p) {
    f8 v;
    memcpy(&v, p, sizeof v);
    return v;
}

INLINE void f8_store(float *p, f8 v) { memcpy(p, &v, sizeof v); }

INLINE f8 f8_set(float x) { return (f8){x, x, x, x, x, x, x, x}; }

/* Lane-wise choice: `yes` where the mask is all ones, `no` where it is zero. */
INLINE f8 f8_select(i8 mask, f8 yes, f8 no) {
#ifdef IGN_AVX2
    return _mm256_blendv_ps(no, yes, (__m256)mask);
#else
    return (f8)((mask & (i8)yes) | (~mask & (i8)no));
#endif
}

INLINE f8 f8_fma(f8 a, f8 b, f8 c) {
#ifdef IGN_AVX2
    return _mm256_fmadd_ps(a, b, c);
#else
    return a * b + c;
#endif
}

INLINE f8 f8_max(f8 a, f8 b) {
#ifdef IGN_AVX2
    return _mm256_max_ps(a, b);
#else
    return f8_select(a > b, a, b);
#endif
}

INLINE f8 f8_abs(f8 a) { return (f8)((i8)a & (int32_t)0x7fffffff); }

/* Sum of the lanes, as ((0+4)+(2+6)) + ((1+5)+(3+7)). */
INLINE float f8_sum(f8 v) {
    float a = v[0] + v[4], b = v[1] + v[5], c = v[2] + v[6], d = v[3] + v[7];
    return (a + c) + (b + d);
}

INLINE float f8_largest(f8 v) {
#ifdef IGN_AVX2
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    m = _mm_max_ss(m, _mm_shuffle_ps(m, m, 1));
    return _mm_cvtss_f32(m);
#else
    float m = v[0];
    for (int i = 1; i < LANES; i++) m = v[i] > m ? v[i] : m;
    return m;
#endif
}

/* Nearest integer, ties to even. Inputs are far inside the int32 range. */
INLINE i8 f8_round(f8 v) {
#ifdef IGN_AVX2
    return (i8)_mm256_cvtps_epi32(v);
#else
    /* Adding 1.5 * 2^23 leaves the rounded integer in the low bits of the mantissa. */
    f8 shifted = v + 12582912.0f;
    return (i8)shifted - 0x4b400000;
#endif
}

INLINE f8 f8_of_i8(i8 v) { return __builtin_convertvector(v, f8); }

/* exp(x) for x <= 88, relative error about 1e-7; exactly 0 below -87, where floats turn subnormal,
 * and exactly 1 at 0. */
INLINE f8 f8_exp(f8 x) {
    i8 in_range = x >= f8_set(-87.0f);
    x = f8_max(x, f8_set(-87.0f));
    i8 n = f8_round(x * 1.44269504088896341f);
    f8 k = f8_of_i8(n);
    /* ln 2 in two parts keeps the reduced argument exact to float precision. */
    f8 r = f8_fma(k, f8_set(-0.693359375f), x);
    r = f8_fma(k, f8_set(2.12194440e-4f), r);
    f8 p = f8_set(1.9875691500e-4f);
    p = f8_fma(p, r, f8_set(1.3981999507e-3f));
    p = f8_fma(p, r, f8_set(8.3334519073e-3f));
    p = f8_fma(p, r, f8_set(4.1665795894e-2f));
    p = f8_fma(p, r, f8_set(1.6666665459e-1f));
    p = f8_fma(p, r, f8_set(5.0000001201e-1f));
    p = f8_fma(p, r * r, r + 1.0f);
    return (f8)((i8)(p * (f8)((n + 127) << 23)) & in_range);
}

/* x * sigmoid(x). */
INLINE f8 f8_silu(f8 x) { return x / (f8_exp(f8_max(-x, f8_set(-88.0f))) + 1.0f); }

#ifdef IGN_AVX2
INLINE f8 f8_load_half(const uint16_t *p) {
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
}

INLINE void f8_store_half(uint16_t *p, f8 v) {
    _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
}
#else
INLINE float half_to_float(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, magnitude = (uint32_t)(h & 0x7fff) << 13;
    uint32_t bits = magnitude;
    float value;
    if ((h & 0x7c00) == 0x7c00) {
        bits = magnitude | 0x7f800000;
        memcpy(&value, &bits, sizeof value);
    } else {
        /* Multiplying by 2^112 moves the exponent bias and normalises subnormals. */
        memcpy(&value, &bits, sizeof value);
        value *= 0x1p112f;
        memcpy(&bits, &value, sizeof value);
    }
    bits |= sign;
    memcpy(&value, &bits, sizeof value);
    return value;
}

INLINE uint16_t float_to_half(float f) {
    uint32_t bits;
    memcpy(&bits, &f, sizeof f);
    uint32_t sign = (bits >> 16) & 0x8000, rest = bits & 0x7fffffff;
    if (rest > 0x7f800000) return (uint16_t)(sign | 0x7e00);
    if (rest >= 0x47800000) return (uint16_t)(sign | 0x7c00);
    if (rest < 0x38800000) {
        /* Subnormal half: the addition rounds to the right bit, ties to even. */
        float magic = fabsf(f) + 0.5f;
        memcpy(&bits, &magic, sizeof magic);
        return (uint16_t)(sign | (bits - 0x3f000000));
    }
    rest += 0xfff + ((rest >> 13) & 1);
    return (uint16_t)(sign | ((rest - 0x38000000) >> 13));
}

INLINE f8 f8_load_half(const uint16_t *p) {
    f8 v;
    for (int i = 0; i < LANES; i++) v[i] = half_to_float(p[i]);
    return v;
}

INLINE void f8_store_half(uint16_t *p, f8 v) {
    for (int i = 0; i < LANES; i++) p[i] = float_to_half(v[i]);
}
#endif

#endif
