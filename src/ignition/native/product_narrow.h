/* Products of one integer panel with the tiles of tile_int_avx2.h or tile_int_plain.h. */
#ifndef IGN_PRODUCT_NARROW_H
#define IGN_PRODUCT_NARROW_H

#include "product.h"
#ifdef IGN_AVX2
#include "tile_int_avx2.h"
#else
#include "tile_int_plain.h"
#endif

static void multiply_q8(const uint8_t *panel, int blocks, const rows_in *x, int rows, float *out,
                        int stride) {
    int r = 0;
    for (; r + 4 <= rows; r += 4) {
        rows_in at = rows_from(x, r);
        tile_q8(panel, blocks, &at, out + (size_t)r * stride, stride, 4);
    }
    rows_in at = rows_from(x, r);
    out += (size_t)r * stride;
    switch (rows - r) {
        case 3: tile_q8(panel, blocks, &at, out, stride, 3); break;
        case 2: tile_q8(panel, blocks, &at, out, stride, 2); break;
        case 1: tile_q8(panel, blocks, &at, out, stride, 1); break;
        default: break;
    }
}

#ifdef IGN_AVX2
static void multiply_q4_direct(const uint8_t *panel, int blocks, const rows_in *x, int rows,
                               float *out, int stride) {
    switch (rows) {
        case 1: tile_q4_direct(panel, blocks, x, out, stride, 1); break;
        case 2: tile_q4_direct(panel, blocks, x, out, stride, 2); break;
        case 3: tile_q4_direct(panel, blocks, x, out, stride, 3); break;
        case 4: tile_q4_direct(panel, blocks, x, out, stride, 4); break;
        case 5: tile_q4_direct(panel, blocks, x, out, stride, 5); break;
        default: tile_q4_direct(panel, blocks, x, out, stride, 6); break;
    }
}
#endif

#endif
