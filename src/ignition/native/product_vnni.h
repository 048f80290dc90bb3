/* Integer products of a pair of panels with the tiles of tile_int_vnni.h. */
#ifndef IGN_PRODUCT_VNNI_H
#define IGN_PRODUCT_VNNI_H

#include "product_narrow.h"
#include "tile_int_vnni.h"

static void prepare(panel_pair *pair, int rows, uint8_t *memory) {
    (void)rows, (void)memory;
    pair->is_expanded = 0;
}

/* Calls a tile with its row count as a constant, so that each count gets an unrolled copy. */
#define TILE_OF(rows, tile, ...)                   \
    switch (rows) {                                \
        case 1: tile(__VA_ARGS__, 1); break;       \
        case 2: tile(__VA_ARGS__, 2); break;       \
        case 3: tile(__VA_ARGS__, 3); break;       \
        case 4: tile(__VA_ARGS__, 4); break;       \
        case 5: tile(__VA_ARGS__, 5); break;       \
        case 6: tile(__VA_ARGS__, 6); break;       \
        case 7: tile(__VA_ARGS__, 7); break;       \
        case 8: tile(__VA_ARGS__, 8); break;       \
        case 9: tile(__VA_ARGS__, 9); break;       \
        case 10: tile(__VA_ARGS__, 10); break;     \
        case 11: tile(__VA_ARGS__, 11); break;     \
        default: tile(__VA_ARGS__, WIDE_ROWS);     \
    }

static void multiply_both(const uint8_t *const *panels, int kind, int blocks, const rows_in *x,
                          int rows, float *out, int stride) {
    if (kind == KIND_Q4) {
        TILE_OF(rows, tile_q4_wide, panels, blocks, x, out, stride)
    } else {
        TILE_OF(rows, tile_q8_wide, panels, blocks, x, out, stride)
    }
}

/* The last panel of an odd number, or one of twins of two kinds. */
static void multiply_alone(const uint8_t *panel, int kind, int blocks, const rows_in *x, int rows,
                           float *out, int stride) {
    if (kind == KIND_Q8) {
        multiply_q8(panel, blocks, x, rows, out, stride);
        return;
    }
    for (int r = 0, tile; r < rows; r += tile) {
        rows_in at = rows_from(x, r);
        tile = rows - r < DIRECT_ROWS ? rows - r : DIRECT_ROWS;
        multiply_q4_direct(panel, blocks, &at, tile, out + (size_t)r * stride, stride);
    }
}

static void multiply_integers(const panel_pair *pair, const rows_in *x, int rows, int first,
                              float *out, int stride) {
    const int blocks = pair->inputs / BLOCK;
    const int is_uniform = pair->count == 2 && pair->kinds[0] == pair->kinds[1];
    (void)first;
    /* A single row waits for memory only, which the narrow tiles read as one stream. */
    if (rows == 1 || !is_uniform) {
        for (int p = 0; p < pair->count; p++)
            multiply_alone(pair->panels[p], pair->kinds[p], blocks, x, rows, out + p * LANES, stride);
        return;
    }
    for (int r = 0, tile; r < rows; r += tile) {
        rows_in at = rows_from(x, r);
        float *to = out + (size_t)r * stride;
        tile = rows - r < WIDE_ROWS ? rows - r : WIDE_ROWS;
        multiply_both(pair->panels, pair->kinds[0], blocks, &at, tile, to, stride);
    }
}

#endif
