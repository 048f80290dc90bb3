/* Finding the likeliest tokens without sorting the vocabulary. */
#ifndef IGN_SELECT_H
#define IGN_SELECT_H

#include <stdint.h>

/* Sort keys: ascending keys are descending logits, equal logits by ascending token. */
static inline int key_token(uint64_t key) { return (int)(key & 0xffffffffu); }

/* The `count` largest logits with their ids, largest first, ties by lower id. */
void top_n(const float *logits, int count, int32_t *ids, float *values);

/* Writes keys of a superset of the tokens that a draw can keep, and returns how many: at least the
 * `limit` largest, or enough of the largest to reach mass `top_p * total` of exp(x - largest), and
 * nothing surely below min_p times the largest probability. */
int gather_top(const float *x, float largest, int limit, double top_p, double total, double min_p,
               uint64_t *keys);

/* Sorts ascending, in place, without allocating. */
void sort_keys(uint64_t *keys, int count);

#endif
