/* Blocked softmax over spans of 64 absolute positions.
 *
 * For each span the keys are loaded once, transposed to [dimension][position], and used by all
 * queries of the tile. Per query the arithmetic is: scores by multiply-adds over dimensions in
 * order; the running maximum per span; weights exp(score - maximum); values by multiply-adds over
 * positions in order. None of it depends on the other queries, so a token's output is the same
 * alone, in a longer chunk and in a decode step. */
#include "attention.h"

#include "vector.h"

#ifdef IGN_FLOAT32
typedef float kv_element;
#define load_kv f8_load
#define store_kv f8_store
#else
typedef uint16_t kv_element;
#define load_kv f8_load_half
#define store_kv f8_store_half
#endif

typedef struct {
    float *keys;    /* [HEAD][SPAN] */
    float *values;  /* [SPAN][HEAD] */
    float *queries; /* [TILE_QUERIES][HEAD], scaled */
    float *scores;  /* [TILE_QUERIES][SPAN] */
    float *output;  /* [TILE_QUERIES][HEAD] */
    float *sums;    /* [TILE_QUERIES][LANES] */
    float *maxima;  /* [TILE_QUERIES] */
} workspace;

static workspace workspace_in(float *memory) {
    workspace w;
    w.keys = memory;
    w.values = w.keys + HEAD * SPAN;
    w.queries = w.values + HEAD * SPAN;
    w.scores = w.queries + TILE_QUERIES * HEAD;
    w.output = w.scores + TILE_QUERIES * SPAN;
    w.sums = w.output + TILE_QUERIES * HEAD;
    w.maxima = w.sums + TILE_QUERIES * LANES;
    return w;
}

static size_t cache_offset(const model *m, int layer_index, int row, int position) {
    int32_t page = m->state.page_table[(int64_t)row * m->state.pages_per_row + position / PAGE];
    int64_t slot = (int64_t)page * PAGE + position % PAGE;
    return (size_t)((int64_t)layer_index * m->state.pool_tokens + slot) * KV_WIDTH;
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

/* Transposes eight positions by eight dimensions. */
INLINE void transpose8(const f8 in[8], float *out) {
#ifdef IGN_AVX2
    __m256 a[8], b[8];
    for (int i = 0; i < 8; i += 2) {
        a[i] = _mm256_unpacklo_ps(in[i], in[i + 1]);
        a[i + 1] = _mm256_unpackhi_ps(in[i], in[i + 1]);
    }
    for (int i = 0; i < 8; i += 4)
        for (int k = 0; k < 2; k++) {
            b[i + 2 * k] = _mm256_shuffle_ps(a[i + k], a[i + k + 2], 0x44);
            b[i + 2 * k + 1] = _mm256_shuffle_ps(a[i + k], a[i + k + 2], 0xee);
        }
    for (int i = 0; i < 4; i++) {
        f8_store(out + i * SPAN, _mm256_permute2f128_ps(b[i], b[i + 4], 0x20));
        f8_store(out + (i + 4) * SPAN, _mm256_permute2f128_ps(b[i], b[i + 4], 0x31));
    }
#else
    for (int d = 0; d < 8; d++)
        for (int t = 0; t < 8; t++) out[d * SPAN + t] = in[t][d];
#endif
}

/* Loads one head's keys and values of positions start..start+length-1 as floats. Whole groups of
 * eight positions are read: they lie in one page, and what is past the length is masked later. */
static void load_span(const model *m, int layer_index, int row, int kv_head, int start, int length,
                      const workspace *w) {
    for (int t = 0; t < length; t += LANES) {
        size_t at = cache_offset(m, layer_index, row, start + t) + (size_t)kv_head * HEAD;
        const kv_element *keys = (const kv_element *)m->state.keys + at;
        const kv_element *values = (const kv_element *)m->state.values + at;
        for (int d = 0; d < HEAD; d += LANES) {
            f8 rows[8];
            for (int i = 0; i < 8; i++) rows[i] = load_kv(keys + i * KV_WIDTH + d);
            transpose8(rows, w->keys + d * SPAN + t);
        }
        int valid = length - t < LANES ? length - t : LANES;
        for (int i = 0; i < valid; i++)
            for (int d = 0; d < HEAD; d += LANES)
                f8_store(w->values + (t + i) * HEAD + d, load_kv(values + i * KV_WIDTH + d));
    }
}

/* Scores of R queries with V * 8 positions. */
INLINE void score_tile(const float *keys, const float *queries, float *scores, const int R,
                       const int V) {
    f8 acc[6][4];
    for (int r = 0; r < R; r++)
        for (int v = 0; v < V; v++) acc[r][v] = f8_set(0);
    for (int d = 0; d < HEAD; d++) {
        f8 k[4];
        for (int v = 0; v < V; v++) k[v] = f8_load(keys + d * SPAN + v * LANES);
#pragma GCC unroll 6
        for (int r = 0; r < R; r++) {
            f8 q = f8_set(queries[r * HEAD + d]);
            for (int v = 0; v < V; v++) acc[r][v] = f8_fma(q, k[v], acc[r][v]);
        }
    }
    for (int r = 0; r < R; r++)
        for (int v = 0; v < V; v++) f8_store(scores + r * SPAN + v * LANES, acc[r][v]);
}

/* Adds the weighted values of `length` positions to V * 8 dimensions of R outputs. */
INLINE void value_tile(const float *values, const float *weights, float *output, int length,
                       const int R, const int V) {
    f8 acc[6][4];
    for (int r = 0; r < R; r++)
        for (int v = 0; v < V; v++) acc[r][v] = f8_load(output + r * HEAD + v * LANES);
    for (int t = 0; t < length; t++) {
        f8 x[4];
        for (int v = 0; v < V; v++) x[v] = f8_load(values + t * HEAD + v * LANES);
#pragma GCC unroll 6
        for (int r = 0; r < R; r++) {
            f8 p = f8_set(weights[r * SPAN + t]);
            for (int v = 0; v < V; v++) acc[r][v] = f8_fma(p, x[v], acc[r][v]);
        }
    }
    for (int r = 0; r < R; r++)
        for (int v = 0; v < V; v++) f8_store(output + r * HEAD + v * LANES, acc[r][v]);
}

static void score_all(const workspace *w, int first, int queries, int length) {
    int q = first;
    int padded = (length + LANES - 1) / LANES * LANES;
    for (; q + 6 <= queries; q += 6) {
        int t = 0;
        for (; t + 16 <= padded; t += 16)
            score_tile(w->keys + t, w->queries + q * HEAD, w->scores + q * SPAN + t, 6, 2);
        for (; t < padded; t += 8)
            score_tile(w->keys + t, w->queries + q * HEAD, w->scores + q * SPAN + t, 6, 1);
    }
    for (; q + 3 <= queries; q += 3) {
        int t = 0;
        for (; t + 32 <= padded; t += 32)
            score_tile(w->keys + t, w->queries + q * HEAD, w->scores + q * SPAN + t, 3, 4);
        for (; t < padded; t += 8)
            score_tile(w->keys + t, w->queries + q * HEAD, w->scores + q * SPAN + t, 3, 1);
    }
    for (; q < queries; q++) {
        int t = 0;
        for (; t + 32 <= padded; t += 32)
            score_tile(w->keys + t, w->queries + q * HEAD, w->scores + q * SPAN + t, 1, 4);
        for (; t < padded; t += 8)
            score_tile(w->keys + t, w->queries + q * HEAD, w->scores + q * SPAN + t, 1, 1);
    }
}

static void value_all(const workspace *w, int first, int queries, int length) {
    int q = first;
    for (; q + 6 <= queries; q += 6) {
        int d = 0;
        for (; d + 16 <= HEAD; d += 16)
            value_tile(w->values + d, w->scores + q * SPAN, w->output + q * HEAD + d, length, 6, 2);
        for (; d < HEAD; d += 8)
            value_tile(w->values + d, w->scores + q * SPAN, w->output + q * HEAD + d, length, 6, 1);
    }
    for (; q + 3 <= queries; q += 3) {
        int d = 0;
        for (; d + 32 <= HEAD; d += 32)
            value_tile(w->values + d, w->scores + q * SPAN, w->output + q * HEAD + d, length, 3, 4);
        for (; d < HEAD; d += 8)
            value_tile(w->values + d, w->scores + q * SPAN, w->output + q * HEAD + d, length, 3, 1);
    }
    for (; q < queries; q++)
        for (int d = 0; d < HEAD; d += 8)
            value_tile(w->values + d, w->scores + q * SPAN, w->output + q * HEAD + d, length, 1, 1);
}

/* Turns one query's scores of a span into weights and rescales what it has gathered so far.
 * The first `visible` of `length` positions count; the rest get weight zero. */
static void soften(const workspace *w, int query, int visible, int length) {
    const i8 lanes = {0, 1, 2, 3, 4, 5, 6, 7};
    const f8 hidden = f8_set(-INFINITY);
    float *scores = w->scores + query * SPAN;
    int padded = (length + LANES - 1) / LANES * LANES;
    f8 top = hidden;
    for (int t = 0; t < padded; t += LANES) {
        f8 s = f8_select(lanes + t < visible, f8_load(scores + t), hidden);
        f8_store(scores + t, s);
        top = f8_max(s, top);
    }
    float largest = f8_largest(top), before = w->maxima[query];
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

void attend(const model *m, int layer_index, const attention_tile *tile, int kv_head,
            float *memory) {
    workspace w = workspace_in(memory);
    int queries = tile->tokens * GROUP;
    int position = m->scratch.batch.positions[tile->first]; /* of the tile's first token */
    int total = position + tile->tokens;
    gather_queries(m, tile, kv_head, &w);
    for (int start = 0; start < total; start += SPAN) {
        int length = total - start < SPAN ? total - start : SPAN;
        /* Early tokens of the tile may lie before this span. */
        int skipped = start > position ? (start - position) * GROUP : 0;
        load_span(m, layer_index, tile->row, kv_head, start, length, &w);
        score_all(&w, skipped, queries, length);
        for (int q = skipped; q < queries; q++) {
            int visible = position + q / GROUP + 1 - start;
            soften(&w, q, visible < length ? visible : length, length);
        }
        value_all(&w, skipped, queries, length);
    }
    for (int q = 0; q < queries; q++) {
        f8 scale = f8_set(1.0f / f8_sum(f8_load(w.sums + q * LANES)));
        float *to = m->scratch.attention + (size_t)(tile->first + q / GROUP) * ATTENTION_WIDTH +
                    (size_t)(kv_head * GROUP + q % GROUP) * HEAD;
        for (int d = 0; d < HEAD; d += LANES)
            f8_store(to + d, f8_load(w.output + q * HEAD + d) * scale);
    }
}
