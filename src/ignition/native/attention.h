/* Attention over the paged cache for a tile of consecutive tokens of one request row. */
#ifndef IGN_ATTENTION_H
#define IGN_ATTENTION_H

#include "model.h"

enum {
    TILE_QUERIES_GOAL = 48,
    TILE_TOKENS = TILE_QUERIES_GOAL / GROUP > 0 ? TILE_QUERIES_GOAL / GROUP : 1,
    TILE_QUERIES = TILE_TOKENS * GROUP,
    ATTENTION_FLOATS =
        2 * HEAD * SPAN + TILE_QUERIES * (2 * HEAD + SPAN + LANES + 1) + 4 * LANES
};

typedef struct {
    int32_t row;     /* request row whose pages are read */
    int32_t first;   /* first token of the tile within the batch */
    int32_t tokens;  /* 1 to TILE_TOKENS, at consecutive positions */
} attention_tile;

/* Appends the keys and values of one token, already rotated, to its row's pages. */
void store_token(const model *m, int layer_index, int row, int position, const float *keys,
                 const float *values);

/* Computes the attention output of GROUP query heads of one key/value head for every token of the
 * tile into scratch.attention. `memory` holds ATTENTION_FLOATS floats, 32-byte aligned. */
void attend(const model *m, int layer_index, const attention_tile *tile, int kv_head,
            float *memory);

#endif
