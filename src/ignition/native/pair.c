/* A separate draft model inside a program (docs/design/drafts.md section 7).
 *
 * This file is about a library that was compiled for the geometry of the draft model: its keys and
 * values are pools of the draft's own, everything else of its serving state are the arrays of the
 * target, so it reads the rows and pages of the very requests that the target serves. It writes
 * nothing but its pools. */
#include <string.h>

#include "round.h"
#include "sampling.h"
#include "step.h"

EXPORT pool *ign_pool(const model *m) { return m->pool; }

/* Runs on the threads of another model from now on, which must outlive this one and have as many:
 * threads of two pools would spin beside each other's work. */
EXPORT void ign_use_pool(model *m, pool *shared) {
    if (!m->borrows_pool) pool_destroy(m->pool);
    m->pool = shared;
    m->borrows_pool = 1;
}

typedef struct {
    const model *m;
    int32_t *proposals; /* [lanes][depth] */
    float *confidence;  /* the same shape, or NULL */
    int place;
    size_t at[MAX_LANES]; /* where the proposal behind each of the first rows of logits goes */
} choice;

/* The likeliest token, the lowest id on a tie, and the draft's own probability of all so far. */
static void choose_task(void *argument, int index, int thread) {
    const choice *c = argument;
    const float *logits = c->m->scratch.logits + (size_t)index * LOGITS_WIDTH;
    int best = 0;
    (void)thread;
    for (int i = 1; i < VOCABULARY; i++)
        if (logits[i] > logits[best]) best = i;
    size_t at = c->at[index];
    c->proposals[at] = best;
    if (!c->confidence) return;
    double total = mass(logits, 0, VOCABULARY, logits[best]);
    float chance = total > 1 ? (float)(1 / total) : 1.0f;
    c->confidence[at] = c->place ? c->confidence[at - 1] * chance : chance;
}

static void feed_place(const acceptance *a, batch *b, int lane, int place, const int32_t *own) {
    int row = a->in->rows[lane];
    b->tokens[b->count] = place ? own[place - 1] : a->m->state.pending_token[row];
    b->rows[b->count] = row;
    b->positions[b->count++] = a->m->state.cached_tokens[row] + place;
}

/* Writes the proposals of every lane but `skipped`, token zero where a lane takes none, and where
 * `confidence` is not NULL the draft's probability of every prefix, zero where there is none. Appends
 * all positions that the target may verify: the last proposal is fed, too, without a score.
 * Returns -1, or the first lane that reaches a position without a page; then nothing has changed. */
EXPORT int32_t ign_pair_propose(model *m, const round_inputs *in, int32_t *proposals,
                                float *confidence, int32_t skipped) {
    batch *b = &m->scratch.batch;
    acceptance a = {.m = m, .in = in};
    choice c = {.m = m, .proposals = proposals, .confidence = confidence};
    size_t places = (size_t)in->lanes * (size_t)in->depth;
    memset(proposals, 0, places * sizeof *proposals);
    if (confidence) memset(confidence, 0, places * sizeof *confidence);
    int32_t unmapped = list_lanes(&a, skipped);
    if (unmapped >= 0) return unmapped;
    for (int place = 0; place < in->width; place++) {
        int scored = 0;
        b->count = 0;
        c.place = place;
        /* Lanes that go on first, so that the head sees no other rows. */
        for (int ends = 0; ends < 2; ends++)
            for (int i = 0; i < a.live; i++) {
                int lane = a.lane_of[i], length = in->lengths[lane];
                size_t first = (size_t)lane * (size_t)in->depth;
                if (place >= length || (place + 1 == length) != ends) continue;
                feed_place(&a, b, lane, place, proposals + first);
                if (!ends) c.at[scored++] = first + (size_t)place;
            }
        if (!b->count) break;
        if (!scored) {
            append_layers(m);
            continue;
        }
        run_layers(m);
        run_head(m, 0, scored);
        pool_run(m->pool, choose_task, &c, scored);
    }
    return -1;
}

/* Appends the pending tokens and given proposals of every lane but `skipped`. Returns -1, or the
 * first lane that reaches a position without a page; then nothing has changed. */
EXPORT int32_t ign_pair_absorb(model *m, const round_inputs *in, int32_t skipped) {
    batch *b = &m->scratch.batch;
    acceptance a = {.m = m, .in = in};
    b->count = 0;
    int32_t unmapped = feed_lanes(&a, b, skipped);
    if (unmapped >= 0 || !b->count) return unmapped;
    append_layers(m);
    return -1;
}

/* Appends a chunk of a prompt. */
EXPORT void ign_pair_consume(model *m, int32_t row, int32_t position, int32_t count,
                             const int32_t *tokens) {
    batch *b = &m->scratch.batch;
    if (row < 0 || count <= 0) return;
    b->count = count;
    for (int t = 0; t < count; t++) {
        b->tokens[t] = tokens[t];
        b->rows[t] = row;
        b->positions[t] = position + t;
    }
    append_layers(m);
}
