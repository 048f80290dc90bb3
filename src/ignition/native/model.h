/* The records that the C files share: weights, serving state, scratch buffers, the model handle. */
#ifndef IGN_MODEL_H
#define IGN_MODEL_H

#include <stddef.h>
#include <stdint.h>

#include "pool.h"
#include "shape.h"

/* Storage of a weight matrix. Panels hold eight output rows; see pack.py for the byte layout. */
typedef enum { KIND_Q4 = 0, KIND_Q8 = 1, KIND_F32 = 2 } matrix_kind;

typedef struct {
    const uint8_t *data;
    int32_t kind;
    int32_t rows;   /* outputs, before padding to whole panels */
    int32_t inputs; /* multiple of 32 */
} matrix;

enum { MATRIX_Q, MATRIX_K, MATRIX_V, MATRIX_O, MATRIX_GATE, MATRIX_UP, MATRIX_DOWN, MATRICES };

enum {
    VECTOR_ATTENTION_NORM,
    VECTOR_FFN_NORM,
    VECTOR_Q_BIAS,
    VECTOR_K_BIAS,
    VECTOR_V_BIAS,
    VECTOR_Q_NORM,
    VECTOR_K_NORM,
    VECTORS
};

typedef struct {
    matrix weights[MATRICES];
    const float *vectors[VECTORS];
} layer;

/* Mirror of ignition.state.ServingState; the binding fills it with the addresses of its arrays. */
typedef struct {
    void *keys;
    void *values;
    int32_t *page_table;
    int32_t *pending_token;
    int32_t *cached_tokens;
    int32_t *output_count;
    uint8_t *finished;
    const float *temperature;
    const float *top_p;
    const int32_t *top_k;
    const float *min_p;
    const float *presence_penalty;
    const float *frequency_penalty;
    const float *repetition_penalty;
    const uint64_t *seed;
    const int32_t *top_logprobs;
    const int32_t *stop_token_ids;
    const int32_t *bias_count;
    const int32_t *bias_ids;
    const float *bias_values;
    uint16_t *output_counts;
    uint8_t *prompt_seen;
    int64_t pages_per_row;
    int64_t pool_tokens;
} serving_state;

/* Token rows quantised for a product: codes, and per block the scale, scale * sum(codes) and
 * sum(codes). */
typedef struct {
    int8_t *codes; /* [tokens][inputs] */
    float *scales; /* [tokens][inputs / 32] */
    float *sums;   /* [tokens][inputs / 32] */
    int32_t *code_sums; /* [tokens][inputs / 32] */
} quantised;

/* What one step works on: `count` tokens, each with its request row and absolute position. */
typedef struct {
    int32_t count;
    int32_t *tokens;
    int32_t *rows;
    int32_t *positions;
} batch;

typedef struct {
    batch batch;
    float *hidden;    /* [tokens][HIDDEN] residual stream */
    float *normed;    /* [tokens][HIDDEN], fp32 precision only */
    float *qkv;       /* [tokens][QKV_WIDTH] */
    float *attention; /* [tokens][ATTENTION_WIDTH] */
    float *ffn;       /* [tokens][FFN], fp32 precision only */
    quantised input;  /* of the running product, up to HIDDEN or ATTENTION_WIDTH wide */
    quantised middle; /* of the down projection, FFN wide */
    void *tiles;      /* attention tiles of the batch, at most one per token */
    float *logits;    /* [logit rows][LOGITS_WIDTH] */
    float *work;      /* [lanes][LOGITS_WIDTH] sampling workspace */
    uint64_t *keys;   /* [lanes][LOGITS_WIDTH] sampling workspace */
    int32_t token_capacity;
    int32_t logit_capacity;
} scratch;

/* A learned draft: one more layer behind a joint of two products, and a head of fewer rows. Absent
 * while token_ids is NULL. Its keys and values are layer LAYERS of the serving state's pools. */
typedef struct {
    matrix join_hidden;
    matrix join_token;
    matrix head;
    const float *hidden_norm;
    const float *token_norm;
    const int32_t *token_ids; /* [tokens] what the head can propose, ascending */
    int32_t tokens;
    float *pool;   /* [pool tokens][HIDDEN] the target's hidden rows */
    float *before; /* [batch tokens][HIDDEN] scratch: the rows that entries are made from */
    float *rows;   /* [batch tokens][HIDDEN] scratch: what the layer predicts */
    float *logits; /* [lanes][tokens rounded up to whole panels] */
} draft;

typedef struct {
    layer layers[LAYERS + 1]; /* the last is the draft's */
    matrix embedding;
    matrix head;
    const float *norm;
    const float *cosines; /* [context][HEAD / 2] */
    const float *sines;
    float epsilon;
    serving_state state;
    scratch scratch;
    draft draft;
    pool *pool;
    int borrows_pool; /* it is another model's */
    uint8_t *thread_memory; /* one arena per thread */
    int64_t arena_bytes;
    uint8_t *weights; /* copies of all matrices and vectors, on large pages where they exist */
    size_t weight_bytes;
    size_t weight_used;
} model;

#endif
