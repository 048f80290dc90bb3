/* Float32 products: P panels (8 outputs each) by R token rows, inputs in ascending order.
 *
 * One multiply-add per input and output in the order of the inputs, whatever P and R are. */
#ifndef IGN_TILE_F32_H
#define IGN_TILE_F32_H

#include "vector.h"

INLINE void tile_f32(const float *const *panels, int inputs, const float *x, int x_stride,
                     float *out, int stride, const int P, const int R) {
    f8 acc[2][6];
    for (int p = 0; p < P; p++)
        for (int r = 0; r < R; r++) acc[p][r] = f8_set(0);
    for (int k = 0; k < inputs; k++) {
        f8 w[2];
        for (int p = 0; p < P; p++) w[p] = f8_load(panels[p] + (size_t)k * LANES);
#pragma GCC unroll 6
        for (int r = 0; r < R; r++) {
            f8 value = f8_set(x[(size_t)r * x_stride + k]);
            for (int p = 0; p < P; p++) acc[p][r] = f8_fma(w[p], value, acc[p][r]);
        }
    }
    for (int p = 0; p < P; p++)
        for (int r = 0; r < R; r++) f8_store(out + (size_t)r * stride + p * LANES, acc[p][r]);
}

#endif
