#include "select.h"

#include "vector.h"

enum {
    BUCKETS = 2048,
    BUCKETS_PER_UNIT = 64 /* so buckets reach 32 below the largest logit; the last takes the rest */
};

static uint64_t key_of(float logit, int token) {
    uint32_t bits;
    memcpy(&bits, &logit, sizeof bits);
    if (bits == 0x80000000u) bits = 0; /* -0 and 0 are a tie */
    uint32_t ascending = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return (uint64_t)(uint32_t)~ascending << 32 | (uint32_t)token;
}

static void insert(float value, int token, int count, int32_t *ids, float *values) {
    int at = count - 1;
    for (; at > 0 && values[at - 1] < value; at--) {
        values[at] = values[at - 1];
        ids[at] = ids[at - 1];
    }
    values[at] = value;
    ids[at] = token;
}

void top_n(const float *logits, int count, int32_t *ids, float *values) {
    if (count <= 0) return;
    for (int i = 0; i < count; i++) {
        values[i] = -INFINITY;
        ids[i] = 0;
    }
    for (int t = 0; t < VOCABULARY; t++)
        if (logits[t] > values[count - 1]) insert(logits[t], t, count, ids, values);
}

static int bucket_of(float below) {
    float at = below * BUCKETS_PER_UNIT;
    return at < BUCKETS - 1 ? (int)at : BUCKETS - 1; /* also for -inf logits */
}

/* Last bucket that is needed: it completes `limit` tokens, or the mass. */
static int last_bucket(const float *x, float largest, int limit, double top_p, double total) {
    int32_t counts[BUCKETS] = {0};
    for (int t = 0; t < VOCABULARY; t++) counts[bucket_of(largest - x[t])]++;
    int seen = 0;
    double least = 0; /* lower bound of the mass: each token at its bucket's far edge */
    for (int b = 0; b < BUCKETS - 1; b++) {
        seen += counts[b];
        least += counts[b] * exp(-(double)(b + 1) / BUCKETS_PER_UNIT);
        if (seen >= limit) return b;
        if (top_p < 1.0 && least >= top_p * total) return b;
    }
    return BUCKETS - 1;
}

int gather_top(const float *x, float largest, int limit, double top_p, double total, double min_p,
               uint64_t *keys) {
    int last = BUCKETS - 1;
    if (limit < VOCABULARY || top_p < 1.0) last = last_bucket(x, largest, limit, top_p, total);
    if (min_p > 0) {
        int reachable = bucket_of((float)-log(min_p < 1 ? min_p : 1)) + 1;
        if (reachable < last) last = reachable;
    }
    int count = 0;
    for (int t = 0; t < VOCABULARY; t++)
        if (bucket_of(largest - x[t]) <= last) keys[count++] = key_of(x[t], t);
    return count;
}

static void sift_down(uint64_t *keys, int root, int count) {
    uint64_t moving = keys[root];
    for (int child; (child = 2 * root + 1) < count; root = child) {
        if (child + 1 < count && keys[child + 1] > keys[child]) child++;
        if (keys[child] <= moving) break;
        keys[root] = keys[child];
    }
    keys[root] = moving;
}

void sort_keys(uint64_t *keys, int count) {
    for (int root = count / 2 - 1; root >= 0; root--) sift_down(keys, root, count);
    for (int end = count - 1; end > 0; end--) {
        uint64_t largest = keys[0];
        keys[0] = keys[end];
        keys[end] = largest;
        sift_down(keys, 0, end);
    }
}
