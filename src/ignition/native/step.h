/* One pass of a batch of tokens through the layers, and the output head. */
#ifndef IGN_STEP_H
#define IGN_STEP_H

#include "model.h"

/* Bytes of memory that each thread needs for its tasks. */
int64_t arena_bytes(void);

/* Runs scratch.batch through all layers: appends keys and values, leaves scratch.hidden. The
 * tokens of one request row must be neighbours in the batch, at consecutive positions. */
void run_layers(model *m);

/* As run_layers, for its keys and values alone: of the last layer nothing else is computed. */
void append_layers(model *m);

/* Raw logits of `count` hidden rows starting at `first` into scratch.logits. */
void run_head(model *m, int first, int count);

/* Runs the draft's layer on the batch: makes entries from the rows `before` and the batch's tokens,
 * appends their keys and values, and, when `is_whole`, leaves the predicted rows in draft.rows. */
void run_draft_layer(model *m, int is_whole);

/* Scores of the draft's tokens for the first `count` predicted rows, into draft.logits. */
void run_draft_head(model *m, int count);

#endif
