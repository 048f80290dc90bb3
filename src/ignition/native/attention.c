/* Blocked softmax over spans of 64 absolute positions.
 *
 * For each span the keys are loaded once, transposed to [dimension][position], and used by all
 * queries of the tile. Per query the arithmetic is: scores by multiply-adds over dimensions in
 * order; the running maximum per span; weights exp(score - maximum); values by multiply-adds over
 * positions in order. None of it depends on the other queries, so a token's output is the same
 * alone, in a longer chunk and in a decode step. */
#include "attention.h"

#include "attention_tiles.h"

/* Memory of one key/value head of a tile. */
typedef struct {
    float *span;    /* keys [HEAD][SPAN], then values [SPAN][HEAD]; shared by all heads */
    float *scores;  /* [TILE_QUERIES][SPAN]; shared by all heads */
    float *queries; /* [TILE_QUERIES][HEAD], scaled */
    float *output;  /* [TILE_QUERIES][HEAD] */
    float *sums;    /* [TILE_QUERIES][LANES] */
    float *maxima;  /* [TILE_QUERIES] */
} workspace;

/* A span of one row's cache and one head. */
typedef struct {
    const model *m;
    int layer_index;
    int row;
    int kv_head;
    int start;  /* first position */
    int length; /* 1 to SPAN */
} span;

enum {
    /* Below this many queries, converting all values first costs more than it saves. */
    DIRECT_QUERIES = 12,
    /* Positions that lie next to each other in the pool and in one span. */
    RUN = PAGE < SPAN ? PAGE : SPAN
};

_Static_assert(SPAN % RUN == 0 && PAGE % RUN == 0, "page size must divide 64 or be its multiple");

static workspace workspace_of(float *memory, int index) {
    workspace w;
    w.span = memory;
    w.scores = w.span + HEAD * SPAN;
    w.queries = memory + SPAN_FLOATS + (size_t)index * HEAD_FLOATS;
    w.output = w.queries + TILE_QUERIES * HEAD;
    w.sums = w.output + TILE_QUERIES * HEAD;
    w.maxima = w.sums + TILE_QUERIES * LANES;
    return w;
}

/* Element offset of a position's keys (or values), all heads. */
static size_t cache_offset(const model *m, int layer_index, int row, int position) {
    int32_t page = m->state.page_table[(int64_t)row * m->state.pages_per_row + position / PAGE];
    int64_t slot = (int64_t)page * PAGE + position % PAGE;
    return (size_t)((int64_t)layer_index * m->state.pool_tokens + slot) * KV_WIDTH;
}

static size_t span_offset(const span *s, int t) {
    return cache_offset(s->m, s->layer_index, s->row, s->start + t) + (size_t)s->kv_head * HEAD;
}

static const kv_element *keys_at(const span *s, int t) {
    return (const kv_element *)s->m->state.keys + span_offset(s, t);
}

static const kv_element *values_at(const span *s, int t) {
    return (const kv_element *)s->m->state.values + span_offset(s, t);
}

void store_token(const model *m, int layer_index, int row, int position, const float *keys,
                 const float *values) {
    size_t at = cache_offset(m, layer_index, row, position);
    kv_element *k = (kv_element *)m->state.keys + at, *v = (kv_element *)m->state.values + at;
    for (int i = 0; i < KV_WIDTH; i += LANES) {
        store_kv(k + i, f8_load(keys + i));
        store_kv(v + i, f8_load(values + i));
    }
}

/* ---- Requesting the next span ---- */

/* Cache lines are requested a little at a time between pieces of arithmetic: a core has few
 * outstanding requests, and a burst of them stalls it as much as the loads would. All heads of a
 * position go together, because that is how they lie in memory. */
typedef struct {
    const model *m;
    int layer_index;
    int row;
    int first_head;
    int heads;
    int step; /* positions at a time */
    int next; /* position */
    int end;
} prefetcher;

static void fetch_some(prefetcher *f) {
    enum { LINE = 64 / KV_BYTES };
    for (int i = 0; i < f->step && f->next < f->end; i++, f->next++) {
        size_t at = cache_offset(f->m, f->layer_index, f->row, f->next);
        const kv_element *keys = (const kv_element *)f->m->state.keys + at + f->first_head * HEAD;
        const kv_element *values =
            (const kv_element *)f->m->state.values + at + f->first_head * HEAD;
        for (int d = 0; d < f->heads * HEAD; d += LINE) {
            __builtin_prefetch(keys + d);
            __builtin_prefetch(values + d);
        }
    }
}

/* ---- One span ---- */

/* Whole groups of eight keys are loaded; they lie in one page, and what is past the length is
 * hidden later. */
static void load_keys(const span *s, float *to) {
    for (int t = 0; t < s->length; t += LANES) {
        const kv_element *from = keys_at(s, t);
        for (int d = 0; d < HEAD; d += LANES) {
            f8 rows[8];
            for (int i = 0; i < 8; i++) rows[i] = load_kv(from + i * KV_WIDTH + d);
            transpose8(rows, to + d * SPAN + t);
        }
    }
}

static void load_values(const span *s, float *to) {
    for (int t = 0; t < s->length; t++) {
        const kv_element *from = values_at(s, t);
        for (int d = 0; d < HEAD; d += LANES) f8_store(to + t * HEAD + d, load_kv(from + d));
    }
}

static void score_all(const workspace *w, int first, int queries, int length, prefetcher *f) {
    int padded = (length + LANES - 1) / LANES * LANES, count;
    for (int q = first; q < queries; q += count) {
        count = queries - q >= 6 ? 6 : queries - q >= 3 ? 3 : 1;
        score_rows(w->span, w->queries + q * HEAD, w->scores + q * SPAN, padded, count);
        fetch_some(f);
    }
}

static void weigh_converted(const workspace *w, int first, int queries, int length,
                            prefetcher *f) {
    int count;
    for (int q = first; q < queries; q += count) {
        count = queries - q >= 6 ? 6 : queries - q >= 3 ? 3 : 1;
        weigh_rows(w->span, w->scores + q * SPAN, w->output + q * HEAD, length, count);
        fetch_some(f);
    }
}

static void weigh_direct(const span *s, const workspace *w, int first, int queries,
                         prefetcher *f) {
    for (int t = 0; t < s->length; t += RUN) {
        int run = s->length - t < RUN ? s->length - t : RUN, count;
        for (int q = first; q < queries; q += count) {
            count = queries - q >= 3 ? 3 : 1;
            weigh_rows_direct(values_at(s, t), w->scores + q * SPAN + t, w->output + q * HEAD, run,
                              count);
            fetch_some(f);
        }
    }
}

/* Turns one query's scores of a span into weights and rescales what it has gathered so far.
 * The first `visible` of `length` positions count. */
static void soften(const workspace *w, int query, int visible, int length) {
    float *scores = w->scores + query * SPAN;
    int padded = (length + LANES - 1) / LANES * LANES;
    if (visible < padded) hide_scores(scores, visible, padded);
    float largest = largest_score(scores, padded), before = w->maxima[query];
    f8 sum = f8_load(w->sums + query * LANES);
    if (largest > before) {
        /* With an unchanged maximum the factor is exactly one. */
        f8 factor = f8_exp(f8_set(before - largest));
        float *output = w->output + query * HEAD;
        for (int d = 0; d < HEAD; d += LANES)
            f8_store(output + d, f8_load(output + d) * factor);
        sum *= factor;
        w->maxima[query] = largest;
    } else {
        largest = before;
    }
    for (int t = 0; t < padded; t += LANES) {
        f8 p = f8_exp(f8_load(scores + t) - largest);
        f8_store(scores + t, p);
        sum += p;
    }
    f8_store(w->sums + query * LANES, sum);
}

/* `position` is that of the tile's first token; early tokens may lie before the span. */
static void attend_span(const span *s, const workspace *w, int position, int queries,
                        prefetcher *f) {
    int skipped = s->start > position ? (s->start - position) * GROUP : 0;
    load_keys(s, w->span);
    score_all(w, skipped, queries, s->length, f);
    for (int q = skipped; q < queries; q++) {
        int visible = position + q / GROUP + 1 - s->start;
        soften(w, q, visible < s->length ? visible : s->length, s->length);
    }
    if (queries - skipped < DIRECT_QUERIES) {
        weigh_direct(s, w, skipped, queries, f);
    } else {
        load_values(s, w->span);
        weigh_converted(w, skipped, queries, s->length, f);
    }
}

/* ---- One tile ---- */

static void gather_queries(const model *m, const attention_tile *tile, int kv_head,
                           const workspace *w) {
    const float scale = 1.0f / sqrtf((float)HEAD);
    for (int t = 0; t < tile->tokens; t++) {
        const float *from = m->scratch.qkv + (size_t)(tile->first + t) * QKV_WIDTH +
                            (size_t)kv_head * GROUP * HEAD;
        float *to = w->queries + t * GROUP * HEAD;
        for (int i = 0; i < GROUP * HEAD; i += LANES)
            f8_store(to + i, f8_load(from + i) * scale);
    }
    memset(w->output, 0, sizeof(float) * (size_t)tile->tokens * GROUP * HEAD);
    memset(w->sums, 0, sizeof(float) * (size_t)tile->tokens * GROUP * LANES);
    for (int q = 0; q < tile->tokens * GROUP; q++) w->maxima[q] = -INFINITY;
}

static void store_output(const model *m, const attention_tile *tile, int kv_head,
                         const workspace *w) {
    for (int q = 0; q < tile->tokens * GROUP; q++) {
        f8 scale = f8_set(1.0f / f8_sum(f8_load(w->sums + q * LANES)));
        float *to = m->scratch.attention + (size_t)(tile->first + q / GROUP) * ATTENTION_WIDTH +
                    (size_t)(kv_head * GROUP + q % GROUP) * HEAD;
        for (int d = 0; d < HEAD; d += LANES)
            f8_store(to + d, f8_load(w->output + q * HEAD + d) * scale);
    }
}

void attend(const model *m, int layer_index, const attention_tile *tile, int first_head, int heads,
            float *memory) {
    int position = m->scratch.batch.positions[tile->first]; /* of the tile's first token */
    int total = position + tile->tokens;
    int calls = 2 * heads * ((tile->tokens * GROUP + 5) / 6);
    for (int h = 0; h < heads; h++) {
        workspace w = workspace_of(memory, h);
        gather_queries(m, tile, first_head + h, &w);
    }
    for (int start = 0; start < total; start += SPAN) {
        int end = start + SPAN < total ? start + SPAN : total;
        int next_end = end + SPAN < total ? end + SPAN : total;
        prefetcher f = {m,   layer_index,              tile->row, first_head, heads,
                        (SPAN + calls - 1) / calls, end,       next_end};
        for (int h = 0; h < heads; h++) {
            workspace w = workspace_of(memory, h);
            span s = {m, layer_index, tile->row, first_head + h, start, end - start};
            attend_span(&s, &w, position, tile->tokens * GROUP, &f);
        }
    }
    for (int h = 0; h < heads; h++) {
        workspace w = workspace_of(memory, h);
        store_output(m, tile, first_head + h, &w);
    }
}
