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
    float *span;    /* keys [HEAD][SPAN], then perhaps values [SPAN][HEAD] */
    float *scores;  /* [queries][SPAN] */
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

/* The work of one call of attend. */
typedef struct {
    const model *m;
    int layer_index;
    const attention_tile *tile;
    int first_head;
    int heads;
    int queries;
    int position; /* of the tile's first token */
    int total;    /* positions up to and with the tile's last token */
    float *memory;
} job;

enum {
    /* Positions whose values are added at a time while streaming. */
    RUN = PAGE < 16 ? PAGE : 16
};

_Static_assert(SPAN % RUN == 0 && PAGE % RUN == 0, "page size must be 8 or a multiple of 16");

/* Wide tiles share the span and the scores between heads, one head after the other. */
static workspace workspace_of(const job *j, int h) {
    int is_stream = j->queries < FEW_QUERIES;
    workspace w;
    w.span = j->memory + (is_stream ? h * HEAD * SPAN : 0);
    w.scores = j->memory + (is_stream ? (KV_HEADS * HEAD + h * FEW_QUERIES) * SPAN : HEAD * SPAN);
    w.queries = j->memory + SPAN_FLOATS + (size_t)h * HEAD_FLOATS;
    w.output = w.queries + TILE_QUERIES * HEAD;
    w.sums = w.output + TILE_QUERIES * HEAD;
    w.maxima = w.sums + TILE_QUERIES * LANES;
    return w;
}

static span span_of(const job *j, int h, int start) {
    int left = j->total - start;
    return (span){j->m, j->layer_index, j->tile->row, j->first_head + h, start,
                  left < SPAN ? left : SPAN};
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

/* ---- One span ---- */

/* Loads eight keys, transposed. They lie in one page, and what is past the length is hidden later. */
static void load_eight_keys(const span *s, int t, float *to) {
    const kv_element *from = keys_at(s, t);
    for (int d = 0; d < HEAD; d += LANES) {
        f8 rows[8];
        for (int i = 0; i < 8; i++) rows[i] = load_kv(from + i * KV_WIDTH + d);
        transpose8(rows, to + d * SPAN + t);
    }
}

static void load_values(const span *s, float *to) {
    for (int t = 0; t < s->length; t++) {
        const kv_element *from = values_at(s, t);
        for (int d = 0; d < HEAD; d += LANES) f8_store(to + t * HEAD + d, load_kv(from + d));
    }
}

/* Queries of the next register tile. */
static int tile_queries(int left) { return left >= 6 ? 6 : left >= 3 ? 3 : 1; }

static void score_some(const workspace *w, int q, int count, int length) {
    int padded = (length + LANES - 1) / LANES * LANES;
    score_rows(w->span, w->queries + q * HEAD, w->scores + q * SPAN, padded, count);
}

static void weigh_run(const span *s, const workspace *w, int first, int queries, int t) {
    int run = s->length - t < RUN ? s->length - t : RUN, count;
    for (int q = first; q < queries; q += count) {
        count = queries - q >= 3 ? 3 : 1;
        weigh_rows_direct(values_at(s, t), w->scores + q * SPAN + t, w->output + q * HEAD, run,
                          count);
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

/* Queries of early tokens, which lie before the span. */
static int skipped_queries(const job *j, int start) {
    return start > j->position ? (start - j->position) * GROUP : 0;
}

static void soften_all(const job *j, const workspace *w, const span *s) {
    for (int q = skipped_queries(j, s->start); q < j->queries; q++) {
        int visible = j->position + q / GROUP + 1 - s->start;
        soften(w, q, visible < s->length ? visible : s->length, s->length);
    }
}

/* Requests the keys and values of `count` positions of the next span, all heads. Done a little at a
 * time between pieces of arithmetic: a burst of requests stalls a core as the loads would. */
static void request_positions(const job *j, int start, int first, int count) {
    enum { LINE = 64 / KV_BYTES };
    for (int t = first; t < first + count && t < SPAN && start + SPAN + t < j->total; t++) {
        size_t at = cache_offset(j->m, j->layer_index, j->tile->row, start + SPAN + t) +
                    (size_t)j->first_head * HEAD;
        for (int d = 0; d < j->heads * HEAD; d += LINE) {
            __builtin_prefetch((const kv_element *)j->m->state.keys + at + d);
            __builtin_prefetch((const kv_element *)j->m->state.values + at + d);
        }
    }
}

/* Many queries: one head after the other, each key and value converted once. */
static void attend_wide(const job *j, int start) {
    int skipped = skipped_queries(j, start), tiles = (j->queries - skipped + 5) / 6, requested = 0;
    int share = (SPAN + j->heads * tiles - 1) / (j->heads * tiles), count;
    for (int h = 0; h < j->heads; h++) {
        workspace w = workspace_of(j, h);
        span s = span_of(j, h, start);
        for (int t = 0; t < s.length; t += LANES) load_eight_keys(&s, t, w.span);
        for (int q = skipped; q < j->queries; q += count) {
            count = tile_queries(j->queries - q);
            score_some(&w, q, count, s.length);
            request_positions(j, start, requested, share);
            requested += share;
        }
        soften_all(j, &w, &s);
        load_values(&s, w.span);
        for (int q = skipped; q < j->queries; q += count) {
            count = tile_queries(j->queries - q);
            weigh_rows(w.span, w.scores + q * SPAN, w.output + q * HEAD, s.length, count);
        }
    }
}

/* Few queries: the step waits for memory, so the cache is read in the order in which it lies there,
 * which is what the hardware's own prefetch follows: all heads of a position together. */
static void attend_stream(const job *j, int start) {
    int skipped = skipped_queries(j, start), length = span_of(j, 0, start).length;
    workspace w[KV_HEADS];
    span s[KV_HEADS];
    for (int h = 0; h < j->heads; h++) {
        w[h] = workspace_of(j, h);
        s[h] = span_of(j, h, start);
    }
    for (int t = 0; t < length; t += LANES)
        for (int h = 0; h < j->heads; h++) load_eight_keys(&s[h], t, w[h].span);
    for (int h = 0; h < j->heads; h++) {
        for (int q = skipped, count; q < j->queries; q += count) {
            count = tile_queries(j->queries - q);
            score_some(&w[h], q, count, length);
        }
        soften_all(j, &w[h], &s[h]);
    }
    for (int t = 0; t < length; t += RUN)
        for (int h = 0; h < j->heads; h++) weigh_run(&s[h], &w[h], skipped, j->queries, t);
}

/* ---- One tile ---- */

static void gather_queries(const job *j, int kv_head, const workspace *w) {
    const attention_tile *tile = j->tile;
    const float scale = 1.0f / sqrtf((float)HEAD);
    for (int t = 0; t < tile->tokens; t++) {
        const float *from = j->m->scratch.qkv + (size_t)(tile->first + t) * QKV_WIDTH +
                            (size_t)kv_head * GROUP * HEAD;
        float *to = w->queries + t * GROUP * HEAD;
        for (int i = 0; i < GROUP * HEAD; i += LANES)
            f8_store(to + i, f8_load(from + i) * scale);
    }
    memset(w->output, 0, sizeof(float) * (size_t)j->queries * HEAD);
    memset(w->sums, 0, sizeof(float) * (size_t)j->queries * LANES);
    for (int q = 0; q < j->queries; q++) w->maxima[q] = -INFINITY;
}

static void store_output(const job *j, int kv_head, const workspace *w) {
    for (int q = 0; q < j->queries; q++) {
        f8 scale = f8_set(1.0f / f8_sum(f8_load(w->sums + q * LANES)));
        float *to = j->m->scratch.attention +
                    (size_t)(j->tile->first + q / GROUP) * ATTENTION_WIDTH +
                    (size_t)(kv_head * GROUP + q % GROUP) * HEAD;
        for (int d = 0; d < HEAD; d += LANES)
            f8_store(to + d, f8_load(w->output + q * HEAD + d) * scale);
    }
}

void attend(const model *m, int layer_index, const attention_tile *tile, int first_head, int heads,
            float *memory) {
    int position = m->scratch.batch.positions[tile->first];
    job j = {m,        layer_index,
             tile,     first_head,
             heads,    tile->tokens * GROUP,
             position, position + tile->tokens,
             memory};
    for (int h = 0; h < heads; h++) {
        workspace w = workspace_of(&j, h);
        gather_queries(&j, first_head + h, &w);
    }
    for (int start = 0; start < j.total; start += SPAN) {
        if (j.queries < FEW_QUERIES)
            attend_stream(&j, start);
        else
            attend_wide(&j, start);
    }
    for (int h = 0; h < heads; h++) {
        workspace w = workspace_of(&j, h);
        store_output(&j, first_head + h, &w);
    }
}
