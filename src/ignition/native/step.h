/* One pass of a batch of tokens through the layers, and the output head. */
#ifndef IGN_STEP_H
#define IGN_STEP_H

#include "model.h"

/* Bytes of memory that each thread needs for its tasks. */
int64_t arena_bytes(void);

/* Runs scratch.batch through all layers: appends keys and values, leaves scratch.hidden. The
 * tokens of one request row must be neighbours in the batch, at consecutive positions. */
void run_layers(model *m);

/* Raw logits of `count` hidden rows starting at `first` into scratch.logits. */
void run_head(model *m, int first, int count);

#endif
