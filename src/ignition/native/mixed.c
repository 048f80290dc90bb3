/* Mixed steps: the chunk of one prompt beside lanes that generate, in one pass over the weights. */
#include "round.h"
#include "step.h"

/* The prompt's part of a mixed step. */
typedef struct {
    int32_t lane;     /* which of the lanes consumes the chunk; -1 for none */
    int32_t position; /* tokens of the row before the chunk */
    int32_t count;
    int32_t is_final; /* the first output token is drawn behind the chunk */
    const int32_t *tokens;
} prompt_inputs;

typedef struct {
    const acceptance *lanes;
    const prompt_inputs *prompt;
} mixed_phase;

/* The lanes that generate, and behind them the prompt, whose logits are the first row. */
static void mixed_task(void *argument, int index, int thread) {
    const mixed_phase *s = argument;
    const acceptance *a = s->lanes;
    const round_inputs *in = a->in;
    (void)thread;
    if (index < a->live)
        accept_lane(a, index);
    else
        sample_row(a->m, in->rows[s->prompt->lane], 0, index, s->prompt->lane * in->width, a->out);
}

static void feed_prompt(batch *b, int row, const prompt_inputs *p) {
    for (int t = 0; t < p->count; t++) {
        b->tokens[b->count] = p->tokens[t];
        b->rows[b->count] = row;
        b->positions[b->count++] = p->position + t;
    }
}

/* The prompt is fed first: then its last token and the target rows of the lanes are neighbours, and
 * the head sees no other rows. Returns -1, or the first generating lane that reaches a position
 * without a page; then nothing has changed. */
EXPORT int32_t ign_mixed(model *m, const round_inputs *in, const prompt_inputs *p,
                         const lane_outputs *out) {
    batch *b = &m->scratch.batch;
    int row = p->lane < 0 ? -1 : in->rows[p->lane], drawn = row >= 0 && p->is_final;
    acceptance a = {.m = m, .in = in, .out = out};
    clear_round(in, out);
    b->count = 0;
    if (row >= 0) feed_prompt(b, row, p);
    a.head_first = b->count - drawn;
    int32_t unmapped = feed_lanes(&a, b, p->lane);
    if (unmapped >= 0 || !b->count) return unmapped;
    if (row >= 0) {
        uint8_t *seen = m->state.prompt_seen + (size_t)row * VOCABULARY;
        for (int t = 0; t < p->count; t++) seen[p->tokens[t]] = 1;
    }
    run_layers(m);
    if (row >= 0) m->state.cached_tokens[row] = p->position + p->count;
    if (b->count > a.head_first) run_head(m, a.head_first, b->count - a.head_first);
    mixed_phase s = {&a, p};
    pool_run(m->pool, mixed_task, &s, a.live + drawn);
    return -1;
}
