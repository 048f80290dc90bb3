/* Lanes that generate: what they are asked, how they are fed, and how their draws are accepted.
 * Rounds and mixed steps share it. */
#ifndef IGN_ROUND_H
#define IGN_ROUND_H

#include "sampling.h"

#define EXPORT __attribute__((visibility("default")))

/* Lanes of a program, as the catalog bounds them. */
enum { MAX_LANES = 64 };

/* What a round is asked: B lanes, each with up to `width` target rows. */
typedef struct {
    int32_t lanes;
    int32_t width;
    int32_t depth;            /* proposals of a lane; at least width - 1 */
    const int32_t *rows;      /* [lanes] */
    const int32_t *lengths;   /* [lanes] target rows, the pending token's included */
    const int32_t *proposals; /* [lanes][depth] */
} round_inputs;

/* The lanes that were fed and where their logits are. */
typedef struct {
    const model *m;
    const round_inputs *in;
    const lane_outputs *out;
    int32_t live;             /* lanes that were fed */
    int32_t head_first;       /* token of the batch that logits row 0 belongs to */
    int32_t lane_of[MAX_LANES];
    int32_t first[MAX_LANES]; /* the lane's first row of logits */
} acceptance;

/* Marks one output entry as empty. */
void clear_lane(const lane_outputs *out, int entry);

/* Marks all outputs of a round as empty. */
void clear_round(const round_inputs *in, const lane_outputs *out);

/* Whether a row has a page for a position. */
int is_mapped(const model *m, int row, int position);

/* Lists the active, unfinished lanes but `skipped`. Returns -1, or the first lane that its length
 * takes to a position without a page. */
int32_t list_lanes(acceptance *a, int skipped);

/* Appends the target rows of every active, unfinished lane but `skipped` to the batch. Returns -1,
 * or the first lane that reaches a position without a page; only scratch memory has changed. */
int32_t feed_lanes(acceptance *a, batch *b, int skipped);

/* Draws for the lane that was fed as number `index`, commits what it accepts. */
void accept_lane(const acceptance *a, int index);

#endif
