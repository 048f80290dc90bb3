/* Products of token rows with one or two weight panels, choosing the tile for the row count. */
#ifndef IGN_PRODUCT_H
#define IGN_PRODUCT_H

#include "model.h"
#include "panel.h"

/* The token rows of a product: quantised in the int8 precision, floats in fp32. */
typedef struct {
    rows_in quantised;
    const float *floats; /* [rows][inputs] */
    int inputs;
} operand;

/* One or two panels ready to be multiplied; `unpacked` is memory for two expanded panels. */
typedef struct {
    const uint8_t *panels[2];
    int kinds[2];
    int count;
    int inputs;
    int is_expanded;
    expanded unpacked[2];
    const uint8_t *ahead[2]; /* panels that will probably be unpacked next */
} panel_pair;

enum {
    /* Up to this many rows, q4 panels are unpacked in registers instead of memory. */
    DIRECT_ROWS = 6,
    PAIR_BYTES = 2 * (EXPANDED_CODES + 2 * 4 * EXPANDED_SCALES)
};

size_t panel_bytes(const matrix *w);
int panel_count(const matrix *w);

/* Address of one panel of a matrix. */
const uint8_t *panel_of(const matrix *w, int index);

/* Chooses panels first and first + 1 of a matrix (or the last one alone) for `rows` rows.
 * `memory` holds PAIR_BYTES, 64-byte aligned, and must live as long as the pair. */
void take_pair(panel_pair *pair, const matrix *w, int first, int rows, uint8_t *memory);

/* Chooses panel `index` of two matrices of the same size. */
void take_twins(panel_pair *pair, const matrix *a, const matrix *b, int index, int rows,
                uint8_t *memory);

/* out[r * stride + 8 * p + lane] for `rows` rows starting at row `first` of the operand. */
void multiply_pair(const panel_pair *pair, const operand *x, int first, int rows, float *out,
                   int stride);

#endif
