/* Integer products of a pair of panels with the tiles of tile_int_avx2.h or tile_int_plain.h. */
#ifndef IGN_PRODUCT_PLAIN_H
#define IGN_PRODUCT_PLAIN_H

#include "product_narrow.h"

static void prepare(panel_pair *pair, int rows, uint8_t *memory) {
    int blocks = pair->inputs / BLOCK;
#ifdef IGN_AVX2
    pair->is_expanded = rows > DIRECT_ROWS;
#else
    pair->is_expanded = rows > 0;
#endif
    for (int p = 0; p < pair->count; p++) {
        uint8_t *base = memory + p * (PAIR_BYTES / 2);
        expanded *e = &pair->unpacked[p];
        *e = (expanded){base, (float *)(base + EXPANDED_CODES),
                        (float *)(base + EXPANDED_CODES) + EXPANDED_SCALES};
        if (pair->is_expanded && pair->kinds[p] == KIND_Q4) expand_q4(pair->panels[p], blocks, e);
    }
}

/* Rows of the next tile: threes, but never a single row at the end that two twos could cover. */
static int tile_rows(int left) {
    if (left == 1) return 1;
    return left == 2 || left == 4 ? 2 : 3;
}

static void multiply_q4_single(const expanded *e, int blocks, const rows_in *x, int rows,
                               float *out, int stride) {
    for (int r = 0; r < rows; r++) {
        rows_in at = rows_from(x, r);
        tile_q4_expanded(e, blocks, &at, out + (size_t)r * stride, stride, NULL, 1, 1);
    }
}

/* Past the end of a matrix the requests reach into the next one, which is needed next. */
static void multiply_q4_pair(const panel_pair *pair, const rows_in *x, int rows, int first,
                             float *out, int stride) {
    const expanded *e = pair->unpacked;
    int blocks = pair->inputs / BLOCK, bytes = blocks * (Q4_CODE_BYTES + Q4_SCALE_BYTES);
    int requested = first == 0 ? 0 : bytes;
    for (int r = 0, tile; r < rows; r += tile) {
        rows_in at = rows_from(x, r);
        float *to = out + (size_t)r * stride;
        tile = tile_rows(rows - r);
        const uint8_t *ahead[2] = {pair->ahead[0] + requested, pair->ahead[1] + requested};
        if (tile == 3 && requested < bytes)
            tile_q4_expanded(e, blocks, &at, to, stride, ahead, 2, 3);
        else if (tile == 3)
            tile_q4_expanded(e, blocks, &at, to, stride, NULL, 2, 3);
        else if (tile == 2)
            tile_q4_expanded(e, blocks, &at, to, stride, ahead, 2, 2);
        else
            tile_q4_expanded(e, blocks, &at, to, stride, NULL, 2, 1);
        requested += blocks * FETCH_BYTES;
    }
}

static void multiply_one(const panel_pair *pair, int p, const rows_in *x, int rows, float *out,
                         int stride) {
    int blocks = pair->inputs / BLOCK;
    if (pair->kinds[p] == KIND_Q8) {
        multiply_q8(pair->panels[p], blocks, x, rows, out, stride);
        return;
    }
#ifdef IGN_AVX2
    if (!pair->is_expanded) {
        multiply_q4_direct(pair->panels[p], blocks, x, rows, out, stride);
        return;
    }
#endif
    multiply_q4_single(&pair->unpacked[p], blocks, x, rows, out, stride);
}

static void multiply_integers(const panel_pair *pair, const rows_in *x, int rows, int first,
                              float *out, int stride) {
    int both_q4 = pair->count == 2 && pair->kinds[0] == KIND_Q4 && pair->kinds[1] == KIND_Q4;
    if (pair->is_expanded && both_q4) {
        multiply_q4_pair(pair, x, rows, first, out, stride);
        return;
    }
    for (int p = 0; p < pair->count; p++)
        multiply_one(pair, p, x, rows, out + p * LANES, stride);
}

#endif
