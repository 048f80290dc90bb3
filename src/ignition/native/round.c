#include "round.h"

#include <string.h>

#include "step.h"

void clear_lane(const lane_outputs *out, int entry) {
    out->produced[entry] = 0;
    out->terminated[entry] = 0;
    out->report_count[entry] = -1;
}

void clear_round(const round_inputs *in, const lane_outputs *out) {
    for (int entry = 0; entry < in->lanes * in->width; entry++) clear_lane(out, entry);
    size_t places = (size_t)in->lanes * (size_t)in->depth;
    if (out->survival) memset(out->survival, 0, places * sizeof *out->survival);
}

int is_mapped(const model *m, int row, int position) {
    int64_t page = position / PAGE;
    return page < m->state.pages_per_row &&
           m->state.page_table[row * m->state.pages_per_row + page] >= 0;
}

static const int32_t *proposals_of(const round_inputs *in, int lane) {
    return in->depth ? in->proposals + (size_t)lane * (size_t)in->depth : NULL;
}

static void feed_lane(batch *b, const serving_state *state, const round_inputs *in, int lane) {
    int row = in->rows[lane];
    const int32_t *proposals = proposals_of(in, lane);
    for (int i = 0; i < in->lengths[lane]; i++) {
        b->tokens[b->count] = i ? proposals[i - 1] : state->pending_token[row];
        b->rows[b->count] = row;
        b->positions[b->count++] = state->cached_tokens[row] + i;
    }
}

int32_t list_lanes(acceptance *a, int skipped) {
    const round_inputs *in = a->in;
    const serving_state *state = &a->m->state;
    for (int lane = 0; lane < in->lanes; lane++) {
        int row = in->rows[lane];
        if (lane == skipped || row < 0 || state->finished[row]) continue;
        int position = state->cached_tokens[row], end = position + in->lengths[lane];
        for (; position < end; position = position / PAGE * PAGE + PAGE)
            if (!is_mapped(a->m, row, position)) return lane;
        a->lane_of[a->live++] = lane;
    }
    return -1;
}

int32_t feed_lanes(acceptance *a, batch *b, int skipped) {
    int32_t unmapped = list_lanes(a, skipped);
    if (unmapped >= 0) return unmapped;
    for (int i = 0; i < a->live; i++) {
        a->first[i] = b->count - a->head_first;
        feed_lane(b, &a->m->state, a->in, a->lane_of[i]);
    }
    return -1;
}

/* The chance that each prefix of a lane's proposals from `first` on is accepted, whatever is drawn:
 * what the draws would be taken from if all before were accepted, which has `chance`. The counts
 * that penalties look at hold what is before `first`, and are those of that case while it is read. */
static void survive_lane(const acceptance *a, int index, int first, double chance) {
    const round_inputs *in = a->in;
    int lane = a->lane_of[index], row = in->rows[lane], read = first;
    const int32_t *proposals = proposals_of(in, lane);
    uint16_t *counts = a->m->state.output_counts + (size_t)row * VOCABULARY;
    float *survival = a->out->survival + (size_t)lane * (size_t)in->depth;
    for (; read + 1 < in->lengths[lane] && chance > 0; read++) {
        chance *= chance_of(a->m, row, a->first[index] + read, index, lane * in->width + read,
                            proposals[read], a->out);
        survival[read] = (float)chance;
        counts[proposals[read]]++;
    }
    while (read-- > first) counts[proposals[read]]--;
}

/* Draws from the target's own distribution of each row, as single steps would, until a draw differs
 * from what was proposed: that is rejection sampling of a proposal which stands for certain. Of a
 * greedy row the draws say what survives; an accepted stop token ends the lane, but what its later
 * rows say of their proposals is told as that of any other. */
void accept_lane(const acceptance *a, int index) {
    const round_inputs *in = a->in;
    int lane = a->lane_of[index], row = in->rows[lane];
    const int32_t *proposals = proposals_of(in, lane);
    int is_told = a->out->survival && in->depth;
    int is_greedy = a->m->state.temperature[row] == 0;
    float *survival = is_told ? a->out->survival + (size_t)lane * (size_t)in->depth : NULL;
    if (is_told && !is_greedy) survive_lane(a, index, 0, 1);
    for (int i = 0; i < in->lengths[lane]; i++) {
        int entry = lane * in->width + i;
        sample_row(a->m, row, a->first[index] + i, index, entry, a->out);
        a->m->state.cached_tokens[row]++;
        if (i + 1 == in->lengths[lane]) return;
        int is_accepted = a->out->tokens[entry] == proposals[i];
        if (is_told && is_greedy) survival[i] = (float)is_accepted;
        if (!is_accepted) return;
        if (a->out->terminated[entry]) {
            if (is_told && is_greedy) survive_lane(a, index, i + 1, 1);
            return;
        }
    }
}

static void accept_task(void *argument, int index, int thread) {
    (void)thread;
    accept_lane(argument, index);
}

/* One complete round: feeds the pending token and the proposals of every active, unfinished row and
 * commits what is accepted. Returns -1, or the first lane that reaches a position without a page;
 * then nothing has changed. */
EXPORT int32_t ign_round(model *m, const round_inputs *in, const lane_outputs *out) {
    batch *b = &m->scratch.batch;
    acceptance a = {.m = m, .in = in, .out = out};
    b->count = 0;
    clear_round(in, out);
    int32_t unmapped = feed_lanes(&a, b, -1);
    if (unmapped >= 0 || !a.live) return unmapped;
    run_layers(m);
    run_head(m, 0, b->count);
    pool_run(m->pool, accept_task, &a, a.live);
    return -1;
}

/* Whether lane `x` gets the next row before lane `y`: its next proposal is likelier, or as likely
 * behind a shorter prefix, or in a smaller row. */
static int goes_before(const round_inputs *in, const float *confidence, const int32_t *offered,
                       int x, int y) {
    float of_x = confidence[(size_t)x * (size_t)in->depth + (size_t)offered[x] - 1];
    float of_y = confidence[(size_t)y * (size_t)in->depth + (size_t)offered[y] - 1];
    if (of_x != of_y) return of_x > of_y;
    if (offered[x] != offered[y]) return offered[x] < offered[y];
    return in->rows[x] < in->rows[y];
}

/* Deals `packed` target rows to the active, unfinished lanes: each its pending row, the rest one at
 * a time by `confidence` [lanes][depth], the joint probability of every prefix. `in->lengths` are
 * ceilings. Causal: whether depth d of a lane gets a row depends on what was known before its
 * proposal d + 1 was made (docs/design/scheduling-utility.md 8.2 and 8.6). */
EXPORT void ign_deal(const model *m, const round_inputs *in, int32_t packed,
                     const float *confidence, int32_t *offered) {
    int spare = packed;
    for (int lane = 0; lane < in->lanes; lane++) {
        int row = in->rows[lane];
        offered[lane] = row >= 0 && !m->state.finished[row];
        spare -= offered[lane];
    }
    for (; spare > 0; spare--) {
        int best = -1;
        for (int lane = 0; lane < in->lanes; lane++) {
            if (!offered[lane] || offered[lane] >= in->lengths[lane]) continue;
            if (best < 0 || goes_before(in, confidence, offered, lane, best)) best = lane;
        }
        if (best < 0) return;
        offered[best]++;
    }
}
