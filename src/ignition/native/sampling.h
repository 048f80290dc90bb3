/* Choosing the next token and reporting log-probabilities (docs/design/programs.md section 3). */
#ifndef IGN_SAMPLING_H
#define IGN_SAMPLING_H

#include "model.h"

/* Where a program reports what its lanes produced, and which tokens they may choose from: one entry
 * per lane, in a round one per target row of each lane. */
typedef struct {
    int32_t *tokens;
    uint8_t *produced;     /* 0: nothing was produced here */
    uint8_t *terminated;   /* the token is one of the row's stop tokens */
    int32_t *report_count; /* the row's top_logprobs; -1: no log-probabilities */
    float *logprobs;       /* of the token */
    int32_t *top_ids;    /* [entries][MAX_TOP] */
    float *top_logprobs; /* [entries][MAX_TOP] */
    const uint8_t *is_masked; /* 0: every token may be chosen here; NULL: everywhere */
    const uint32_t *masks;    /* [entries][MASK_WORDS], bit t % 32 of word t / 32: token t may be */
    float *survival; /* of rounds, [lanes][depth]: the chance of every proposed prefix; or NULL */
} lane_outputs;

/* Samples for request row `row` from logits row `logit_row` in sampling workspace `space`, updates
 * the row's state and writes one entry of the outputs. */
void sample_row(const model *m, int row, int logit_row, int space, int entry,
                const lane_outputs *out);

/* The probability with which sample_row would choose `token` for a row that is not greedy. */
double chance_of(const model *m, int row, int logit_row, int space, int entry, int token,
                 const lane_outputs *out);

/* Sum of exp(x - largest) over x[from..to), in double. */
double mass(const float *x, int from, int to, float largest);

/* Log-probability of `token` and of the `count` likeliest tokens of one logits row. */
void report_logprobs(const float *logits, int token, int count, float *logprob, int32_t *top_ids,
                     float *top_logprobs);

#endif
