#include "step.h"

#include "activation.h"
#include "attention.h"
#include "draft.h"
#include "product.h"

enum {
    /* Row-wise work on fewer rows than this is done by the caller alone: a phase costs more. */
    SERIAL_ROWS = 3,
    /* Rows that one gated-activation tile or residual tile holds in cache. */
    TILE_ROWS = 48,
    FFN_PAIRS = BLOCK / LANES,
    ARENA_PAIRS = FFN_PAIRS * PAIR_BYTES,
    ARENA_TILE = TILE_ROWS * 2 * BLOCK * 4,
    ARENA_BYTES = ARENA_PAIRS + ARENA_TILE > ATTENTION_FLOATS * 4 ? ARENA_PAIRS + ARENA_TILE
                                                                  : ATTENTION_FLOATS * 4
};

typedef struct {
    model *m;
    const layer *layer;
    int index;      /* of the layer */
    int per_task;   /* units of work that one task takes */
    int units;
    int tiles;
    attention_tile *tile_list;
    int heads_per_unit; /* key/value heads that one attention task handles */
    int head_first; /* of a head: first hidden row, and how many */
    int head_count;
    const float *head_rows;
    const matrix *head;
    float *logits;
    int logits_width;
    const float *source; /* of a joint: rows, their norm, the matrix that they are multiplied with */
    const float *norm;
    const matrix *product;
} step;

int64_t arena_bytes(void) { return (ARENA_BYTES + 63) / 64 * 64; }

static uint8_t *arena(const step *s, int thread) {
    return s->m->thread_memory + (int64_t)thread * s->m->arena_bytes;
}

/* Splits `units` into about `tasks_per_thread` tasks for every thread (zero: one task that the
 * caller does alone) and runs them. */
static void run_phase(step *s, task_fn run, int units, int tasks_per_thread) {
    int tasks = tasks_per_thread > 0 ? tasks_per_thread * pool_threads(s->m->pool) : 1;
    s->units = units;
    s->per_task = (units + tasks - 1) / tasks;
    pool_run(s->m->pool, run, s, (units + s->per_task - 1) / s->per_task);
}

static void run_rows(step *s, task_fn run) {
    int rows = s->m->scratch.batch.count;
    run_phase(s, run, rows, rows < SERIAL_ROWS ? 0 : 4);
}

/* First and end unit of a task. */
#define FOR_UNITS(s, index, u)                                            \
    for (int u = (index) * (s)->per_task,                                 \
             u##_end = u + (s)->per_task < (s)->units ? u + (s)->per_task \
                                                      : (s)->units;       \
         u < u##_end; u++)

static operand operand_of(const quantised *q, const float *floats, int width) {
    return (operand){
        {q->codes, q->scales, q->sums, q->code_sums, width, width / BLOCK}, floats, width};
}

/* ---- Row-wise tasks ---- */

static void embed_row(const model *m, int token, float *out) {
    const matrix *e = &m->embedding;
    const uint8_t *panel = panel_of(e, token / LANES);
    int lane = token % LANES, blocks = HIDDEN / BLOCK;
    if (e->kind == KIND_F32) {
        for (int k = 0; k < HIDDEN; k++) out[k] = ((const float *)panel)[k * LANES + lane];
        return;
    }
    for (int g = 0; g < blocks; g++) {
        int is_q8 = e->kind == KIND_Q8, code_bytes = is_q8 ? Q8_CODE_BYTES : Q4_CODE_BYTES;
        const uint8_t *codes = panel + g * code_bytes;
        const uint16_t *scales = (const uint16_t *)(panel + blocks * code_bytes) +
                                 g * (is_q8 ? LANES : 2 * LANES);
        float step = f8_load_half(scales)[lane];
        float minimum = is_q8 ? 0 : f8_load_half(scales + LANES)[lane];
        for (int k = 0; k < BLOCK; k++) {
            int code;
            if (is_q8) {
                code = ((const int8_t *)codes)[k / 4 * 32 + lane * 4 + k % 4];
            } else {
                uint8_t raw = codes[k / 8 * 32 + lane * 4 + k % 4];
                code = k % 8 < 4 ? raw & 15 : raw >> 4;
            }
            out[g * BLOCK + k] = step * (float)code + minimum;
        }
    }
}

static void embed_task(void *argument, int index, int thread) {
    step *s = argument;
    scratch *x = &s->m->scratch;
    (void)thread;
    FOR_UNITS(s, index, t) embed_row(s->m, x->batch.tokens[t], x->hidden + (size_t)t * HIDDEN);
}

static void norm_into_input(const model *m, const float *hidden, const float *weight, int t) {
    const scratch *x = &m->scratch;
#ifdef IGN_FLOAT32
    norm_row(hidden, weight, HIDDEN, m->epsilon, x->normed + (size_t)t * HIDDEN);
#else
    enum { BLOCKS = HIDDEN / BLOCK };
    norm_quantise(hidden, weight, m->epsilon, x->input.codes + (size_t)t * HIDDEN,
                  x->input.scales + (size_t)t * BLOCKS, x->input.sums + (size_t)t * BLOCKS,
                  x->input.code_sums + (size_t)t * BLOCKS);
#endif
}

static void attention_norm_task(void *argument, int index, int thread) {
    step *s = argument;
    (void)thread;
    FOR_UNITS(s, index, t)
    norm_into_input(s->m, s->m->scratch.hidden + (size_t)t * HIDDEN,
                    s->layer->vectors[VECTOR_ATTENTION_NORM], t);
}

static void ffn_norm_task(void *argument, int index, int thread) {
    step *s = argument;
    (void)thread;
    FOR_UNITS(s, index, t)
    norm_into_input(s->m, s->m->scratch.hidden + (size_t)t * HIDDEN,
                    s->layer->vectors[VECTOR_FFN_NORM], t);
}

static void add_bias(float *x, const float *bias, int width) {
    if (!bias) return;
    for (int i = 0; i < width; i += LANES) f8_store(x + i, f8_load(x + i) + f8_load(bias + i));
}

static void finish_heads(const step *s, float *heads, int count, int position,
                         const float *head_norm) {
    for (int h = 0; h < count; h++) {
        float *head = heads + h * HEAD;
        if (head_norm) norm_row(head, head_norm, HEAD, s->m->epsilon, head);
        rotate(head, s->m->cosines + (size_t)position * (HEAD / 2),
               s->m->sines + (size_t)position * (HEAD / 2));
    }
}

/* Bias, head norms, rotary embedding, and the append to the cache. */
static void rotate_task(void *argument, int index, int thread) {
    step *s = argument;
    const batch *b = &s->m->scratch.batch;
    const float *const *vectors = s->layer->vectors;
    (void)thread;
    FOR_UNITS(s, index, t) {
        float *q = s->m->scratch.qkv + (size_t)t * QKV_WIDTH;
        float *k = q + QUERY_WIDTH, *v = k + KV_WIDTH;
        add_bias(q, vectors[VECTOR_Q_BIAS], QUERY_WIDTH);
        add_bias(k, vectors[VECTOR_K_BIAS], KV_WIDTH);
        add_bias(v, vectors[VECTOR_V_BIAS], KV_WIDTH);
        finish_heads(s, q, QUERY_HEADS, b->positions[t], vectors[VECTOR_Q_NORM]);
        finish_heads(s, k, KV_HEADS, b->positions[t], vectors[VECTOR_K_NORM]);
        store_token(s->m, s->index, b->rows[t], b->positions[t], k, v);
    }
}

#ifndef IGN_FLOAT32
static void quantise_attention_task(void *argument, int index, int thread) {
    step *s = argument;
    scratch *x = &s->m->scratch;
    enum { BLOCKS = ATTENTION_WIDTH / BLOCK };
    (void)thread;
    FOR_UNITS(s, index, t)
    quantise_row(x->attention + (size_t)t * ATTENTION_WIDTH, ATTENTION_WIDTH,
                 x->input.codes + (size_t)t * ATTENTION_WIDTH,
                 x->input.scales + (size_t)t * BLOCKS, x->input.sums + (size_t)t * BLOCKS,
                  x->input.code_sums + (size_t)t * BLOCKS);
}
#endif

/* ---- Products ---- */

static int pairs_of(const matrix *w) { return (panel_count(w) + 1) / 2; }

static void qkv_task(void *argument, int index, int thread) {
    step *s = argument;
    scratch *x = &s->m->scratch;
    const matrix *w = s->layer->weights;
    const int first_column[3] = {0, QUERY_WIDTH, QUERY_WIDTH + KV_WIDTH};
    operand in = operand_of(&x->input, x->normed, HIDDEN);
    FOR_UNITS(s, index, u) {
        int which = MATRIX_Q, pair = u;
        while (pair >= pairs_of(w + which)) pair -= pairs_of(w + which++);
        panel_pair p;
        take_pair(&p, w + which, 2 * pair, x->batch.count, arena(s, thread));
        multiply_pair(&p, &in, 0, x->batch.count,
                      x->qkv + first_column[which] + 2 * LANES * pair, QKV_WIDTH);
    }
}

/* hidden += product, for one pair of panels. */
static void add_product(const step *s, const matrix *w, const operand *in, int pair,
                        uint8_t *memory) {
    scratch *x = &s->m->scratch;
    float *tile = (float *)(memory + ARENA_PAIRS);
    panel_pair p;
    take_pair(&p, w, 2 * pair, x->batch.count, memory);
    int width = p.count * LANES;
    for (int first = 0; first < x->batch.count; first += TILE_ROWS) {
        int left = x->batch.count - first, rows = left < TILE_ROWS ? left : TILE_ROWS;
        multiply_pair(&p, in, first, rows, tile, 2 * LANES);
        for (int r = 0; r < rows; r++) {
            float *hidden = x->hidden + (size_t)(first + r) * HIDDEN + 2 * LANES * pair;
            for (int i = 0; i < width; i += LANES)
                f8_store(hidden + i, f8_load(hidden + i) + f8_load(tile + r * 2 * LANES + i));
        }
    }
}

static void output_task(void *argument, int index, int thread) {
    step *s = argument;
    scratch *x = &s->m->scratch;
    operand in = operand_of(&x->input, x->attention, ATTENTION_WIDTH);
    FOR_UNITS(s, index, u)
    add_product(s, s->layer->weights + MATRIX_O, &in, u, arena(s, thread));
}

static void down_task(void *argument, int index, int thread) {
    step *s = argument;
    scratch *x = &s->m->scratch;
    operand in = operand_of(&x->middle, x->ffn, FFN);
    FOR_UNITS(s, index, u)
    add_product(s, s->layer->weights + MATRIX_DOWN, &in, u, arena(s, thread));
}

/* silu(gate) * up for one row and one block of 32 columns; the tile holds pairs of panels, gate
 * first. */
static void gate_row(const scratch *x, const float *tile, int row, int block) {
    f8 v[FFN_PAIRS];
    for (int i = 0; i < FFN_PAIRS; i++)
        v[i] = f8_silu(f8_load(tile + i * 2 * LANES)) * f8_load(tile + (i * 2 + 1) * LANES);
#ifdef IGN_FLOAT32
    for (int i = 0; i < FFN_PAIRS; i++)
        f8_store(x->ffn + (size_t)row * FFN + block * BLOCK + i * LANES, v[i]);
#else
    size_t at = (size_t)row * (FFN / BLOCK) + (size_t)block;
    quantise_block(v, x->middle.codes + at * BLOCK, x->middle.scales + at, x->middle.sums + at,
                   x->middle.code_sums + at);
#endif
}

static void gate_task(void *argument, int index, int thread) {
    step *s = argument;
    scratch *x = &s->m->scratch;
    const matrix *w = s->layer->weights;
    operand in = operand_of(&x->input, x->normed, HIDDEN);
    uint8_t *memory = arena(s, thread);
    float *tile = (float *)(memory + ARENA_PAIRS);
    FOR_UNITS(s, index, block) {
        panel_pair p[FFN_PAIRS];
        for (int first = 0; first < x->batch.count; first += TILE_ROWS) {
            int left = x->batch.count - first, rows = left < TILE_ROWS ? left : TILE_ROWS;
            for (int i = 0; i < FFN_PAIRS; i++) {
                if (first == 0)
                    take_twins(p + i, w + MATRIX_GATE, w + MATRIX_UP, block * FFN_PAIRS + i,
                               x->batch.count, memory + i * PAIR_BYTES);
                multiply_pair(p + i, &in, first, rows, tile + i * 2 * LANES, 2 * BLOCK);
            }
            for (int r = 0; r < rows; r++)
                gate_row(x, tile + r * 2 * BLOCK, first + r, block);
        }
    }
}

/* ---- The layers ---- */

static void attention_task(void *argument, int index, int thread) {
    step *s = argument;
    int parts = KV_HEADS / s->heads_per_unit;
    FOR_UNITS(s, index, u)
    attend(s->m, s->index, s->tile_list + u / parts, u % parts * s->heads_per_unit,
           s->heads_per_unit, (float *)arena(s, thread));
}

static void list_tiles(step *s, attention_tile *list) {
    const batch *b = &s->m->scratch.batch;
    s->tile_list = list;
    s->tiles = 0;
    for (int t = 0; t < b->count;) {
        int tokens = 1;
        while (tokens < TILE_TOKENS && t + tokens < b->count &&
               b->rows[t + tokens] == b->rows[t] &&
               b->positions[t + tokens] == b->positions[t] + tokens)
            tokens++;
        list[s->tiles++] = (attention_tile){b->rows[t], t, tokens};
        t += tokens;
    }
    /* Reading all heads of a position together streams memory best, but few tiles would leave
     * threads idle. */
    int is_enough = s->tiles >= 2 * pool_threads(s->m->pool) || pool_threads(s->m->pool) == 1;
    s->heads_per_unit = is_enough ? KV_HEADS : 1;
}

/* Keys and values of a layer, and the queries. */
static void append_layer(step *s) {
    const matrix *w = s->layer->weights;
    run_rows(s, attention_norm_task);
    run_phase(s, qkv_task, pairs_of(w + MATRIX_Q) + 2 * pairs_of(w + MATRIX_K), 6);
    run_rows(s, rotate_task);
}

static void run_layer(step *s) {
    const matrix *w = s->layer->weights;
    int units = s->tiles * (KV_HEADS / s->heads_per_unit);
    append_layer(s);
    run_phase(s, attention_task, units, units);
#ifndef IGN_FLOAT32
    run_rows(s, quantise_attention_task);
#endif
    run_phase(s, output_task, pairs_of(w + MATRIX_O), 6);
    run_rows(s, ffn_norm_task);
    run_phase(s, gate_task, FFN / BLOCK, 8);
    run_phase(s, down_task, pairs_of(w + MATRIX_DOWN), 6);
}

/* The first `count` layers. */
static void run_first_layers(step *s, int count) {
    list_tiles(s, (attention_tile *)s->m->scratch.tiles);
    run_rows(s, embed_task);
    for (int i = 0; i < count; i++) {
        s->layer = &s->m->layers[i];
        s->index = i;
        run_layer(s);
    }
}

void run_layers(model *m) {
    step s = {.m = m};
    run_first_layers(&s, LAYERS);
    if (m->draft.token_ids) absorb(m);
}

void append_layers(model *m) {
    step s = {.m = m};
    run_first_layers(&s, LAYERS - 1);
    s.layer = &m->layers[LAYERS - 1];
    s.index = LAYERS - 1;
    append_layer(&s);
}

/* ---- The draft's layer ---- */

static void source_norm_task(void *argument, int index, int thread) {
    step *s = argument;
    (void)thread;
    FOR_UNITS(s, index, t) norm_into_input(s->m, s->source + (size_t)t * HIDDEN, s->norm, t);
}

static void source_product_task(void *argument, int index, int thread) {
    step *s = argument;
    scratch *x = &s->m->scratch;
    operand in = operand_of(&x->input, x->normed, HIDDEN);
    FOR_UNITS(s, index, u) add_product(s, s->product, &in, u, arena(s, thread));
}

/* hidden += product * norm(source). */
static void add_joint(step *s) {
    run_rows(s, source_norm_task);
    run_phase(s, source_product_task, pairs_of(s->product), 6);
}

void run_draft_layer(model *m, int is_whole) {
    draft *d = &m->draft;
    scratch *x = &m->scratch;
    float *kept = x->hidden;
    step s = {.m = m, .layer = &m->layers[LAYERS], .index = LAYERS};
    /* Every task works on scratch.hidden; the target's rows are still needed by its head. */
    x->hidden = d->rows;
    run_rows(&s, embed_task);
    s.source = d->rows, s.norm = d->token_norm, s.product = &d->join_token;
    run_rows(&s, source_norm_task);
    memset(d->rows, 0, (size_t)x->batch.count * HIDDEN * sizeof *d->rows);
    run_phase(&s, source_product_task, pairs_of(s.product), 6);
    s.source = d->before, s.norm = d->hidden_norm, s.product = &d->join_hidden;
    add_joint(&s);
    if (is_whole) {
        list_tiles(&s, (attention_tile *)x->tiles);
        run_layer(&s);
    } else {
        append_layer(&s);
    }
    x->hidden = kept;
}

/* ---- The head ---- */

static void head_norm_task(void *argument, int index, int thread) {
    step *s = argument;
    (void)thread;
    FOR_UNITS(s, index, t)
    norm_into_input(s->m, s->head_rows + (size_t)(s->head_first + t) * HIDDEN, s->m->norm, t);
}

static void head_task(void *argument, int index, int thread) {
    step *s = argument;
    scratch *x = &s->m->scratch;
    operand in = operand_of(&x->input, x->normed, HIDDEN);
    FOR_UNITS(s, index, u) {
        panel_pair p;
        take_pair(&p, s->head, 2 * u, s->head_count, arena(s, thread));
        multiply_pair(&p, &in, 0, s->head_count, s->logits + 2 * LANES * u, s->logits_width);
    }
}

static void run_any_head(step *s) {
    int count = s->head_count;
    run_phase(s, head_norm_task, count, count < SERIAL_ROWS ? 0 : 4);
    run_phase(s, head_task, pairs_of(s->head), 16);
}

void run_head(model *m, int first, int count) {
    step s = {.m = m, .head_first = first, .head_count = count};
    s.head_rows = m->scratch.hidden, s.head = &m->head;
    s.logits = m->scratch.logits, s.logits_width = LOGITS_WIDTH;
    run_any_head(&s);
}

void run_draft_head(model *m, int count) {
    step s = {.m = m, .head_count = count, .head_rows = m->draft.rows, .head = &m->draft.head};
    s.logits = m->draft.logits, s.logits_width = draft_width(&m->draft);
    run_any_head(&s);
}
