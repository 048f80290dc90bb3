/* Attention over the paged cache for a tile of consecutive tokens of one request row. */
#ifndef IGN_ATTENTION_H
#define IGN_ATTENTION_H

#include "model.h"

enum {
    TILE_QUERIES_GOAL = 96,
    TILE_TOKENS = TILE_QUERIES_GOAL / GROUP > 0 ? TILE_QUERIES_GOAL / GROUP : 1,
    TILE_QUERIES = TILE_TOKENS * GROUP,
    /* Tiles with fewer queries stream: they read every cached element once, all heads together. */
    FEW_QUERIES = 12,
    /* Keys or values of one span and scores; streaming keeps those of all heads. */
    WIDE_FLOATS = HEAD * SPAN + TILE_QUERIES * SPAN,
    STREAM_FLOATS = KV_HEADS * (HEAD * SPAN + FEW_QUERIES * SPAN),
    SPAN_FLOATS = WIDE_FLOATS > STREAM_FLOATS ? WIDE_FLOATS : STREAM_FLOATS,
    /* Per head and query: input, output, sums and maximum. */
    HEAD_FLOATS = TILE_QUERIES * (2 * HEAD + 2 * LANES),
    ATTENTION_FLOATS = SPAN_FLOATS + KV_HEADS * HEAD_FLOATS
};

typedef struct {
    int32_t row;    /* request row whose pages are read */
    int32_t first;  /* first token of the tile within the batch */
    int32_t tokens; /* 1 to TILE_TOKENS, at consecutive positions */
} attention_tile;

/* Appends the keys and values of one token, already rotated, to its row's pages. */
void store_token(const model *m, int layer_index, int row, int position, const float *keys,
                 const float *values);

/* Computes the attention output of every token of the tile, for the GROUP query heads of each of
 * `heads` key/value heads from `first_head`, into scratch.attention. `memory` holds
 * ATTENTION_FLOATS floats, 32-byte aligned. */
void attend(const model *m, int layer_index, const attention_tile *tile, int first_head, int heads,
            float *memory);

#endif
