/* Learned proposals: what every program keeps for them, and how a round makes them. */
#ifndef IGN_DRAFT_H
#define IGN_DRAFT_H

#include "model.h"

/* Keeps the hidden rows of the batch that was just run, and appends the draft's entries of its
 * positions. */
void absorb(model *m);

void free_draft(draft *d);

/* Floats of one row of draft logits: whole panels. */
int draft_width(const draft *d);

#endif
