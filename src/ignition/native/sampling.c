/* The order of operations is that of the design: report from raw logits, mask, bias, repetition,
 * counts, temperature, top-k, softmax, top-p, min-p, draw. Sums of probabilities are in double. */
#include "sampling.h"

#include "select.h"
#include "vector.h"

typedef double d8 __attribute__((vector_size(64)));

static float largest_logit(const float *x) {
    f8 top = f8_set(-INFINITY);
    int i = 0;
    for (; i + LANES <= VOCABULARY; i += LANES) top = f8_max(f8_load(x + i), top);
    float largest = f8_largest(top);
    for (; i < VOCABULARY; i++) largest = x[i] > largest ? x[i] : largest;
    return largest;
}

static int first_equal(const float *x, float value) {
    for (int i = 0; i < VOCABULARY; i++)
        if (x[i] == value) return i;
    return 0;
}

/* Eight accumulators. */
double mass(const float *x, int from, int to, float largest) {
    d8 total = {0};
    int i = from;
    for (; i + LANES <= to; i += LANES)
        total += __builtin_convertvector(f8_exp(f8_load(x + i) - largest), d8);
    double sum = 0;
    for (int lane = 0; lane < LANES; lane++) sum += total[lane];
    for (; i < to; i++) sum += exp((double)x[i] - (double)largest);
    return sum;
}

void report_logprobs(const float *logits, int token, int count, float *logprob, int32_t *top_ids,
                     float *top_logprobs) {
    float largest = largest_logit(logits);
    double log_total = (double)largest + log(mass(logits, 0, VOCABULARY, largest));
    *logprob = (float)((double)logits[token] - log_total);
    top_n(logits, count, top_ids, top_logprobs);
    for (int i = 0; i < count; i++)
        top_logprobs[i] = (float)((double)top_logprobs[i] - log_total);
}

static void penalise(const serving_state *state, int row, float *x) {
    const uint16_t *counts = state->output_counts + (size_t)row * VOCABULARY;
    const uint8_t *prompt = state->prompt_seen + (size_t)row * VOCABULARY;
    float repetition = state->repetition_penalty[row];
    float frequency = state->frequency_penalty[row], presence = state->presence_penalty[row];
    for (int t = 0; t < VOCABULARY; t++) {
        if (!counts[t] && !prompt[t]) continue;
        if (repetition != 1.0f) x[t] = x[t] > 0 ? x[t] / repetition : x[t] * repetition;
        if (counts[t]) x[t] -= frequency * (float)counts[t] + presence;
    }
}

/* Copies the logits of the allowed tokens; those of the others become minus infinity, which no later
 * operation makes finite. */
static void copy_allowed(const float *raw, const uint32_t *mask, float *x) {
    for (int word = 0; word < MASK_WORDS; word++) {
        int from = word * 32, left = VOCABULARY - from, count = left < 32 ? left : 32;
        uint32_t bits = mask[word];
        if (!bits) {
            for (int i = 0; i < count; i++) x[from + i] = -INFINITY;
            continue;
        }
        for (int i = 0; i < count; i++)
            x[from + i] = bits >> i & 1 ? raw[from + i] : -INFINITY;
    }
}

/* The logits that the draw works on: the raw ones, or an adjusted copy in the workspace. */
static const float *adjusted_logits(const model *m, int row, const float *raw,
                                    const uint32_t *mask, int space) {
    const serving_state *state = &m->state;
    float *work = m->scratch.work + (size_t)space * LOGITS_WIDTH;
    int biases = state->bias_count[row];
    int has_penalty = state->repetition_penalty[row] != 1.0f ||
                      state->frequency_penalty[row] != 0 || state->presence_penalty[row] != 0;
    float temperature = state->temperature[row];
    if (!mask && !biases && !has_penalty && (temperature == 0 || temperature == 1.0f)) return raw;
    if (mask)
        copy_allowed(raw, mask, work);
    else
        memcpy(work, raw, VOCABULARY * sizeof *work);
    for (int i = 0; i < biases; i++)
        work[state->bias_ids[(size_t)row * MAX_BIAS + i]] +=
            state->bias_values[(size_t)row * MAX_BIAS + i];
    if (has_penalty) penalise(state, row, work);
    if (temperature != 0)
        for (int t = 0; t < VOCABULARY; t++) work[t] /= temperature;
    return work;
}

static double draw(uint64_t seed, int32_t output_count) {
    uint64_t z = seed + 0x9E3779B97F4A7C15u * ((uint64_t)output_count + 1);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    z ^= z >> 31;
    return (double)(z >> 11) * 0x1p-53;
}

/* Draws over the whole vocabulary in the order of token ids. */
static int draw_by_id(const float *x, double u) {
    enum { STRIDE = 256 };
    float largest = largest_logit(x);
    double target = u * mass(x, 0, VOCABULARY, largest), running = 0;
    int last = 0;
    for (int from = 0; from < VOCABULARY; from += STRIDE) {
        int to = from + STRIDE < VOCABULARY ? from + STRIDE : VOCABULARY;
        double here = mass(x, from, to, largest);
        if (running + here <= target) {
            running += here;
            if (here > 0) last = to - 1;
            continue;
        }
        for (int t = from; t < to; t++) {
            double p = exp((double)x[t] - (double)largest);
            running += p;
            if (p > 0) last = t;
            if (running > target) return t;
        }
    }
    return last; /* rounding kept the last sum from exceeding u */
}

/* The tokens that top-k, top-p and min-p keep, as sorted keys, likeliest first. Returns how many;
 * `kept_mass` becomes their mass, the largest being one. */
static int keep_sorted(const serving_state *state, int row, const float *x, float largest,
                       uint64_t *keys, double *kept_mass) {
    int top_k = state->top_k[row];
    double top_p = (double)state->top_p[row], min_p = (double)state->min_p[row];
    int limit = top_k > 0 && top_k < VOCABULARY ? top_k : VOCABULARY;
    double total = limit < VOCABULARY ? 0 : mass(x, 0, VOCABULARY, largest);
    /* With top-k, top-p's mass is that of the k largest, so min-p must not thin them out first. */
    int is_limited = limit < VOCABULARY;
    int count = gather_top(x, largest, limit, is_limited ? 1.0 : top_p, total,
                           is_limited ? 0.0 : min_p, keys);
    sort_keys(keys, count);
    if (count > limit) count = limit;
    if (limit < VOCABULARY)
        for (int i = 0; i < count; i++)
            total += exp((double)x[key_token(keys[i])] - (double)largest);

    double running = 0;
    int kept = 0;
    *kept_mass = 0;
    while (kept < count) {
        double p = exp((double)x[key_token(keys[kept])] - (double)largest);
        /* A token that the mask forbids has no weight, and top-k may reach that far. */
        if (kept > 0 && ((top_p < 1 && running >= top_p * total) || p < min_p || p == 0)) break;
        running += p;
        *kept_mass += p;
        kept++;
    }
    return kept;
}

/* Draws among the tokens that the filters keep, likeliest first. */
static int draw_sorted(const serving_state *state, int row, const float *x, uint64_t *keys,
                       double u) {
    float largest = largest_logit(x);
    double kept_mass, running = 0;
    int kept = keep_sorted(state, row, x, largest, keys, &kept_mass);
    for (int i = 0; i < kept; i++) {
        running += exp((double)x[key_token(keys[i])] - (double)largest);
        if (running > u * kept_mass) return key_token(keys[i]);
    }
    return key_token(keys[kept - 1]);
}

static int is_filtered(const serving_state *state, int row) {
    return state->top_k[row] > 0 || state->top_p[row] < 1.0f || state->min_p[row] > 0;
}

static const uint32_t *mask_of(const lane_outputs *out, int entry) {
    int is_masked = out->is_masked && out->is_masked[entry];
    return is_masked ? out->masks + (size_t)entry * MASK_WORDS : NULL;
}

double chance_of(const model *m, int row, int logit_row, int space, int entry, int token,
                 const lane_outputs *out) {
    const serving_state *state = &m->state;
    const float *raw = m->scratch.logits + (size_t)logit_row * LOGITS_WIDTH;
    const float *x = adjusted_logits(m, row, raw, mask_of(out, entry), space);
    float largest = largest_logit(x);
    if (state->temperature[row] == 0) return first_equal(x, largest) == token;
    double own = exp((double)x[token] - (double)largest), kept_mass;
    if (!is_filtered(state, row)) {
        double whole = mass(x, 0, VOCABULARY, largest); /* of rounded terms */
        return own < whole ? own / whole : 1;
    }
    uint64_t *keys = m->scratch.keys + (size_t)space * LOGITS_WIDTH;
    int kept = keep_sorted(state, row, x, largest, keys, &kept_mass);
    for (int i = 0; i < kept; i++)
        if (key_token(keys[i]) == token) return own / kept_mass;
    return 0;
}

static int choose(const model *m, int row, const float *raw, const uint32_t *mask, int space) {
    const serving_state *state = &m->state;
    const float *x = adjusted_logits(m, row, raw, mask, space);
    if (state->temperature[row] == 0) return first_equal(x, largest_logit(x));
    double u = draw(state->seed[row], state->output_count[row]);
    if (!is_filtered(state, row)) return draw_by_id(x, u);
    return draw_sorted(state, row, x, m->scratch.keys + (size_t)space * LOGITS_WIDTH, u);
}

static int is_stop(const serving_state *state, int row, int token) {
    for (int i = 0; i < MAX_STOPS; i++)
        if (state->stop_token_ids[(size_t)row * MAX_STOPS + i] == token) return 1;
    return 0;
}

void sample_row(const model *m, int row, int logit_row, int space, int entry,
                const lane_outputs *out) {
    const serving_state *state = &m->state;
    const float *raw = m->scratch.logits + (size_t)logit_row * LOGITS_WIDTH;
    int token = choose(m, row, raw, mask_of(out, entry), space);
    if (state->top_logprobs[row] >= 0)
        report_logprobs(raw, token, state->top_logprobs[row], out->logprobs + entry,
                        out->top_ids + (size_t)entry * MAX_TOP,
                        out->top_logprobs + (size_t)entry * MAX_TOP);
    uint16_t *seen = state->output_counts + (size_t)row * VOCABULARY + token;
    if (*seen < UINT16_MAX) (*seen)++;
    state->output_count[row]++;
    state->pending_token[row] = token;
    int stops = is_stop(state, row, token);
    if (stops) state->finished[row] = 1;
    out->tokens[entry] = token;
    out->produced[entry] = 1;
    out->report_count[entry] = state->top_logprobs[row];
    out->terminated[entry] = (uint8_t)stops;
}
