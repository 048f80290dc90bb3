/* Learned proposals inside a program (docs/design/drafts.md sections 2 and 3). */
#include "draft.h"

#include <stdlib.h>
#include <string.h>

#include "round.h"
#include "step.h"

int draft_width(const draft *d) { return (d->tokens + LANES - 1) / LANES * LANES; }

static float *hidden_at(const model *m, int row, int position) {
    int32_t page = m->state.page_table[(int64_t)row * m->state.pages_per_row + position / PAGE];
    return m->draft.pool + ((size_t)page * PAGE + (size_t)(position % PAGE)) * HIDDEN;
}

/* The target's hidden row one position before; zero in front of the first. */
static void take_before(const model *m, int entry, int row, int position) {
    float *to = m->draft.before + (size_t)entry * HIDDEN;
    if (position)
        memcpy(to, hidden_at(m, row, position - 1), HIDDEN * sizeof *to);
    else
        memset(to, 0, HIDDEN * sizeof *to);
}

void absorb(model *m) {
    const batch *b = &m->scratch.batch;
    for (int t = 0; t < b->count; t++)
        memcpy(hidden_at(m, b->rows[t], b->positions[t]), m->scratch.hidden + (size_t)t * HIDDEN,
               HIDDEN * sizeof(float));
    for (int t = 0; t < b->count; t++) take_before(m, t, b->rows[t], b->positions[t]);
    run_draft_layer(m, 0);
}

/* Where the likeliest token stands; the lowest id on a tie. */
static int likeliest(const draft *d, const float *logits) {
    int best = 0;
    for (int i = 1; i < d->tokens; i++)
        if (logits[i] > logits[best]) best = i;
    return best;
}

/* Writes the proposals of every lane, token zero where a lane takes none, and where `confidence` is
 * not NULL the head's own probability of every prefix, zero where there is none. Returns -1, or the
 * first lane that reaches a position without a page; then only scratch memory has changed. */
EXPORT int32_t ign_propose(model *m, const round_inputs *in, int32_t *proposals,
                           float *confidence) {
    batch *b = &m->scratch.batch;
    draft *d = &m->draft;
    acceptance a = {.m = m, .in = in};
    int entry_of[MAX_LANES];
    size_t places = (size_t)in->lanes * (size_t)in->depth;
    memset(proposals, 0, places * sizeof *proposals);
    if (confidence) memset(confidence, 0, places * sizeof *confidence);
    int32_t unmapped = list_lanes(&a, -1);
    if (unmapped >= 0) return unmapped;
    for (int place = 0; place < in->depth; place++) {
        b->count = 0;
        for (int i = 0; i < a.live; i++) {
            int lane = a.lane_of[i], row = in->rows[lane], entry = b->count;
            /* An entry only where its proposal will be verified: the lane has pages for no more. */
            if (place + 1 >= in->lengths[lane]) continue;
            const int32_t *own = proposals + (size_t)lane * (size_t)in->depth;
            b->tokens[entry] = place ? own[place - 1] : m->state.pending_token[row];
            b->rows[entry] = row;
            b->positions[entry] = m->state.cached_tokens[row] + place;
            if (place) /* lanes only drop out, so an entry never moves to a later place */
                memcpy(d->before + (size_t)entry * HIDDEN,
                       d->rows + (size_t)entry_of[i] * HIDDEN, HIDDEN * sizeof *d->before);
            else
                take_before(m, entry, row, b->positions[entry]);
            entry_of[i] = entry;
            b->count++;
        }
        if (!b->count) return -1;
        run_draft_layer(m, 1);
        run_draft_head(m, b->count);
        for (int i = 0; i < a.live; i++) {
            int lane = a.lane_of[i];
            if (place + 1 >= in->lengths[lane]) continue;
            const float *logits = d->logits + (size_t)entry_of[i] * (size_t)draft_width(d);
            size_t at = (size_t)lane * (size_t)in->depth + (size_t)place;
            int best = likeliest(d, logits);
            proposals[at] = d->token_ids[best];
            if (!confidence) continue;
            double total = mass(logits, 0, d->tokens, logits[best]);
            float chance = total > 1 ? (float)(1 / total) : 1.0f;
            confidence[at] = place ? confidence[at - 1] * chance : chance;
        }
    }
    return -1;
}

/* Gives the model a draft. Vectors and ids are copied by nobody: they, and the matrices' bytes, must
 * outlive the model, as must the pool of hidden rows. Returns 0 when memory cannot be had. */
EXPORT int32_t ign_set_draft(model *m, int32_t tokens, const int32_t *token_ids,
                             const float *hidden_norm, const float *token_norm, float *pool,
                             int32_t lanes) {
    draft *d = &m->draft;
    size_t bytes = (size_t)m->scratch.token_capacity * HIDDEN * sizeof(float);
    d->tokens = tokens;
    d->before = aligned_alloc(64, (bytes + 127) / 64 * 64);
    d->rows = aligned_alloc(64, (bytes + 127) / 64 * 64);
    d->logits = aligned_alloc(64, ((size_t)lanes * (size_t)draft_width(d) * 4 + 127) / 64 * 64);
    if (!d->before || !d->rows || !d->logits) return 0;
    d->hidden_norm = hidden_norm;
    d->token_norm = token_norm;
    d->pool = pool;
    d->token_ids = token_ids;
    return 1;
}

/* which: 0 and 1 for the joint's halves (hidden row, token), 2 for the head. */
EXPORT void ign_set_draft_matrix(model *m, int32_t which, int32_t kind, int32_t rows,
                                 int32_t inputs, const uint8_t *data) {
    matrix *to[] = {&m->draft.join_hidden, &m->draft.join_token, &m->draft.head};
    *to[which] = (matrix){data, kind, rows, inputs};
}

/* The workspace of a draft, freed with its model. */
void free_draft(draft *d) {
    free(d->before);
    free(d->rows);
    free(d->logits);
}
