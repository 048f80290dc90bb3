/* The functions that the Python binding calls. They check nothing: the binding has validated
 * rows, positions and counts before a program is replayed. */
#include <stdlib.h>
#include <sys/mman.h>

#include "panel.h"
#include "product.h"
#include "attention.h"
#include "draft.h"
#include "round.h"
#include "sampling.h"
#include "step.h"
#include "vector.h"

enum {
    ABI_VERSION = 6,
    /* Rows of logits that scored prefill evaluates at a time. */
    SCORE_ROWS = 16
};

/* What the library was compiled for, so that the binding can refuse another one. */
EXPORT int32_t ign_abi_version(void) { return ABI_VERSION; }

EXPORT void ign_shape(int32_t out[10]) {
    const int32_t shape[10] = {LAYERS, HIDDEN, QUERY_HEADS, KV_HEADS, HEAD,
                               FFN,    VOCABULARY, PAGE,    sizeof(serving_state),
#ifdef IGN_FLOAT32
                               1
#else
                               0
#endif
    };
    memcpy(out, shape, sizeof shape);
}

EXPORT void ign_destroy(model *m) {
    if (!m) return;
    scratch *x = &m->scratch;
    void *buffers[] = {x->batch.tokens, x->batch.rows,   x->batch.positions, x->hidden,
                       x->normed,       x->qkv,          x->attention,       x->ffn,
                       x->input.codes,  x->input.scales, x->input.sums,      x->middle.codes,
                       x->middle.scales, x->middle.sums, x->input.code_sums, x->middle.code_sums,
                       x->tiles,           x->logits,
                       x->work,         x->keys,         m->thread_memory};
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++) free(buffers[i]);
    if (m->weights) munmap(m->weights, m->weight_bytes);
    free_draft(&m->draft);
    if (!m->borrows_pool) pool_destroy(m->pool);
    free(m);
}

/* Zeroed, 64-byte aligned, padded so that whole vectors can be read at the end. */
static void *reserve(int *failed, size_t count, size_t size) {
    size_t bytes = (count * size + 127) / 64 * 64;
    void *p = aligned_alloc(64, bytes);
    if (p)
        memset(p, 0, bytes);
    else
        *failed = 1;
    return p;
}

/* Weights are read from end to end in every step. On 4 KiB pages, address translation and the
 * hardware prefetcher, which stops at page ends, halve the speed of that. */
static int reserve_weights(model *m, size_t bytes) {
    const size_t large = (size_t)2 << 20;
    m->weight_bytes = (bytes + large - 1) / large * large + large;
    void *p = mmap(NULL, m->weight_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
                   0);
    if (p == MAP_FAILED) return 0;
    m->weights = p;
#ifdef MADV_HUGEPAGE
    madvise(p, m->weight_bytes, MADV_HUGEPAGE); /* only advice: failing costs speed alone */
#endif
    m->weight_used = (large - (uintptr_t)p % large) % large;
    return 1;
}

/* The cache pools are as large, and read with long strides. */
static void advise_large_pages(void *start, size_t bytes) {
#ifdef MADV_HUGEPAGE
    const uintptr_t large = (uintptr_t)2 << 20;
    uintptr_t first = ((uintptr_t)start + large - 1) / large * large;
    uintptr_t end = ((uintptr_t)start + bytes) / large * large;
    if (first < end) madvise((void *)first, end - first, MADV_HUGEPAGE);
#else
    (void)start, (void)bytes;
#endif
}

static const uint8_t *copy_weights(model *m, const void *data, size_t bytes) {
    uint8_t *to = m->weights + m->weight_used;
    memcpy(to, data, bytes);
    m->weight_used += (bytes + 63) / 64 * 64;
    return to;
}

static int allocate_scratch(scratch *x, int tokens, int logit_rows, int lanes) {
    enum { INPUT = HIDDEN > ATTENTION_WIDTH ? HIDDEN : ATTENTION_WIDTH };
    int failed = 0;
    size_t n = (size_t)tokens, r = (size_t)logit_rows, l = (size_t)lanes;
    x->token_capacity = tokens;
    x->logit_capacity = logit_rows;
    x->batch.tokens = reserve(&failed, n, 4);
    x->batch.rows = reserve(&failed, n, 4);
    x->batch.positions = reserve(&failed, n, 4);
    x->hidden = reserve(&failed, n * HIDDEN, 4);
    x->qkv = reserve(&failed, n * QKV_WIDTH, 4);
    x->attention = reserve(&failed, n * ATTENTION_WIDTH, 4);
    x->tiles = reserve(&failed, n, sizeof(attention_tile));
#ifdef IGN_FLOAT32
    x->normed = reserve(&failed, n * HIDDEN, 4);
    x->ffn = reserve(&failed, n * FFN, 4);
#endif
    x->input.codes = reserve(&failed, n * INPUT, 1);
    x->input.scales = reserve(&failed, n * (INPUT / BLOCK), 4);
    x->input.sums = reserve(&failed, n * (INPUT / BLOCK), 4);
    x->input.code_sums = reserve(&failed, n * (INPUT / BLOCK), 4);
    x->middle.codes = reserve(&failed, n * FFN, 1);
    x->middle.scales = reserve(&failed, n * (FFN / BLOCK), 4);
    x->middle.sums = reserve(&failed, n * (FFN / BLOCK), 4);
    x->middle.code_sums = reserve(&failed, n * (FFN / BLOCK), 4);
    x->logits = reserve(&failed, r * LOGITS_WIDTH, 4);
    x->work = reserve(&failed, l * LOGITS_WIDTH, 4);
    x->keys = reserve(&failed, l * LOGITS_WIDTH, 8);
    return !failed;
}

/* `tokens` and `head_rows` are the most that one program feeds and evaluates the head for, `lanes`
 * the most that it samples for. `weight_bytes`: of everything that ign_set_matrix and ign_set_vector
 * will copy, each rounded up to 64. Returns NULL when memory or threads cannot be had. */
EXPORT model *ign_create(const serving_state *state, int32_t threads, int32_t tokens,
                         int32_t head_rows, int32_t lanes, int64_t weight_bytes, float epsilon,
                         const float *cosines, const float *sines) {
    model *m = calloc(1, sizeof *m);
    if (!m) return NULL;
    m->state = *state;
    m->epsilon = epsilon;
    m->cosines = cosines;
    m->sines = sines;
    m->arena_bytes = arena_bytes();
    size_t pool_bytes = (size_t)LAYERS * (size_t)state->pool_tokens * KV_WIDTH * KV_BYTES;
    advise_large_pages(state->keys, pool_bytes);
    advise_large_pages(state->values, pool_bytes);
    int failed = 0;
    m->thread_memory = reserve(&failed, (size_t)threads, (size_t)m->arena_bytes);
    int logit_rows = head_rows > SCORE_ROWS ? head_rows : SCORE_ROWS;
    m->pool = pool_create(threads);
    if (failed || !m->pool || !reserve_weights(m, (size_t)weight_bytes) ||
        !allocate_scratch(&m->scratch, tokens, logit_rows, lanes)) {
        ign_destroy(m);
        return NULL;
    }
    return m;
}

/* which: MATRIX_*, or MATRICES for the embedding and MATRICES + 1 for the head. */
EXPORT void ign_set_matrix(model *m, int32_t layer_index, int32_t which, int32_t kind,
                           int32_t rows, int32_t inputs, const uint8_t *data) {
    matrix *to = which == MATRICES       ? &m->embedding
                 : which == MATRICES + 1 ? &m->head
                                         : &m->layers[layer_index].weights[which];
    *to = (matrix){data, kind, rows, inputs};
    to->data = copy_weights(m, data, panel_bytes(to) * (size_t)panel_count(to));
}

/* The head of a model with tied embeddings. */
EXPORT void ign_tie_head(model *m) { m->head = m->embedding; }

/* which: VECTOR_*, or VECTORS for the final norm. */
EXPORT void ign_set_vector(model *m, int32_t layer_index, int32_t which, int32_t size,
                           const float *data) {
    const float *copy = (const float *)copy_weights(m, data, (size_t)size * sizeof *data);
    if (which == VECTORS)
        m->norm = copy;
    else
        m->layers[layer_index].vectors[which] = copy;
}

typedef struct {
    const model *m;
    const int32_t *rows;
    const int32_t *lanes;
    const lane_outputs *out;
} sampling_phase;

static void sample_task(void *argument, int index, int thread) {
    const sampling_phase *s = argument;
    (void)thread;
    sample_row(s->m, s->rows[index], index, index, s->lanes[index], s->out);
}

/* One token for every active, unfinished row of rows[0..lanes). Returns -1, or the first lane
 * whose next position has no page; then nothing has changed. */
EXPORT int32_t ign_decode(model *m, int32_t lanes, const int32_t *rows, const lane_outputs *out) {
    batch *b = &m->scratch.batch;
    const serving_state *state = &m->state;
    int32_t lane_of[MAX_LANES];
    b->count = 0;
    for (int lane = 0; lane < lanes; lane++) {
        int row = rows[lane];
        clear_lane(out, lane);
        if (row < 0 || state->finished[row]) continue;
        if (!is_mapped(m, row, state->cached_tokens[row])) return lane;
        lane_of[b->count] = lane;
        b->tokens[b->count] = state->pending_token[row];
        b->rows[b->count] = row;
        b->positions[b->count++] = state->cached_tokens[row];
    }
    if (!b->count) return -1;
    run_layers(m);
    run_head(m, 0, b->count);
    for (int i = 0; i < b->count; i++) state->cached_tokens[b->rows[i]]++;
    sampling_phase s = {m, b->rows, lane_of, out};
    pool_run(m->pool, sample_task, &s, b->count);
    return -1;
}

static void consume(model *m, int row, int position, int count, const int32_t *tokens) {
    batch *b = &m->scratch.batch;
    uint8_t *seen = m->state.prompt_seen + (size_t)row * VOCABULARY;
    b->count = count;
    for (int t = 0; t < count; t++) {
        b->tokens[t] = tokens[t];
        b->rows[t] = row;
        b->positions[t] = position + t;
        seen[tokens[t]] = 1;
    }
    run_layers(m);
    m->state.cached_tokens[row] = position + count;
}

/* Consumes a prompt chunk; samples the first output token after the final one. */
EXPORT void ign_prefill(model *m, int32_t row, int32_t position, int32_t count,
                        const int32_t *tokens, int32_t is_final, const lane_outputs *out) {
    clear_lane(out, 0);
    if (row < 0 || count <= 0) return;
    consume(m, row, position, count, tokens);
    if (!is_final) return;
    run_head(m, count - 1, 1);
    sample_row(m, row, 0, 0, 0, out);
}

/* Where scored prefill reports; one entry per consumed position. */
typedef struct {
    float *logprobs;
    int32_t *top_ids;    /* [count][MAX_TOP] */
    float *top_logprobs; /* [count][MAX_TOP] */
} score_outputs;

typedef struct {
    const model *m;
    const int32_t *following; /* token that follows each position, -1 for none */
    const score_outputs *out;
    int first;
    int alternatives;
} scoring_phase;

static void score_task(void *argument, int index, int thread) {
    const scoring_phase *s = argument;
    int at = s->first + index, token = s->following[at];
    (void)thread;
    if (token < 0) return;
    report_logprobs(s->m->scratch.logits + (size_t)index * LOGITS_WIDTH, token, s->alternatives,
                    s->out->logprobs + at, s->out->top_ids + (size_t)at * MAX_TOP,
                    s->out->top_logprobs + (size_t)at * MAX_TOP);
}

/* As ign_prefill, and scores following[i], the prompt token after each consumed position. */
EXPORT void ign_scored_prefill(model *m, int32_t row, int32_t position, int32_t count,
                               const int32_t *tokens, const int32_t *following, int32_t is_final,
                               const lane_outputs *out, const score_outputs *scores) {
    clear_lane(out, 0);
    if (row < 0 || count <= 0) return;
    consume(m, row, position, count, tokens);
    out->report_count[0] = m->state.top_logprobs[row];
    int alternatives = m->state.top_logprobs[row] > 0 ? m->state.top_logprobs[row] : 0;
    for (int first = 0; first < count; first += SCORE_ROWS) {
        int rows = count - first < SCORE_ROWS ? count - first : SCORE_ROWS;
        run_head(m, first, rows);
        scoring_phase s = {m, following, scores, first, alternatives};
        pool_run(m->pool, score_task, &s, rows);
        if (!is_final || first + rows < count) continue;
        /* Every program leaves the logits it sampled from in row 0. */
        float *logits = m->scratch.logits;
        if (rows > 1)
            memcpy(logits, logits + (size_t)(rows - 1) * LOGITS_WIDTH, LOGITS_WIDTH * 4);
        sample_row(m, row, 0, 0, 0, out);
    }
}

/* Raw logits of the last head evaluation, for tests and diagnosis: [logit rows][logits width]. */
EXPORT const float *ign_logits(const model *m, int32_t *width) {
    *width = LOGITS_WIDTH;
    return m->scratch.logits;
}

EXPORT int32_t ign_threads(const model *m) { return pool_threads(m->pool); }

/* From ign_watch on: nanoseconds that the model's threads lost to others, as time of all of them. */
EXPORT void ign_watch(model *m) { pool_watch(m->pool); }
EXPORT uint64_t ign_lost_ns(const model *m) { return pool_lost_ns(m->pool); }
