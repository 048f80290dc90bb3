/* Byte layout of weight panels and the operands that tiles read. pack.py writes this layout. */
#ifndef IGN_PANEL_H
#define IGN_PANEL_H

#include <stddef.h>
#include <stdint.h>

#include "shape.h"

/* A panel is 8 output rows by all inputs, in blocks of 32 inputs: first the codes of every block,
 * then the half-precision scales of every block.
 *   q4: 128 code bytes a block (4 groups of 32; low nibbles are inputs 8j..8j+3, high nibbles
 *       8j+4..8j+7, for rows 0..7 in turn); scales: 8 steps, 8 minimums
 *   q8: 256 code bytes a block (8 groups of 32: inputs 4j..4j+3 of rows 0..7); scales: 8 steps
 *   f32: [inputs][8] floats, no scales */
enum {
    Q4_CODE_BYTES = 128,
    Q4_SCALE_BYTES = 32,
    Q8_CODE_BYTES = 256,
    Q8_SCALE_BYTES = 16,
    F32_BLOCK_BYTES = 1024,

    FETCH_BYTES = 64 /* a cache line */
};

/* Quantised token rows as a tile reads them; strides are in elements. */
typedef struct {
    const int8_t *codes;
    const float *scales;
    const float *sums; /* scale * sum of codes, for the minimums of q4 */
    const int32_t *code_sums;
    int code_stride;
    int block_stride;
} rows_in;

/* A q4 panel unpacked for use by many rows. */
typedef struct {
    uint8_t *codes;  /* [blocks][8][32] */
    float *steps;    /* [blocks][8] */
    float *minimums; /* [blocks][8] */
} expanded;

enum {
    EXPANDED_CODES = MAX_INPUT * LANES,
    EXPANDED_SCALES = MAX_INPUT / BLOCK * LANES
};

#endif
