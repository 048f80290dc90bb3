/* What the last pass through the layers left behind, for training and diagnosis. */
#include "model.h"

__attribute__((visibility("default"))) const float *ign_hidden(const model *m);

/* Hidden rows before the final norm, [tokens of the last batch][HIDDEN]: of a prompt one per token,
 * of a decode step one per row that was fed, in the order of the lanes. */
const float *ign_hidden(const model *m) { return m->scratch.hidden; }
