#include "product.h"

#include "tile_f32.h"

static rows_in rows_from(const rows_in *x, int first) {
    rows_in from = *x;
    from.codes += (size_t)first * x->code_stride;
    from.scales += (size_t)first * x->block_stride;
    from.sums += (size_t)first * x->block_stride;
    from.code_sums += (size_t)first * x->block_stride;
    return from;
}

#ifdef IGN_VNNI
#include "product_vnni.h"
#else
#include "product_plain.h"
#endif

size_t panel_bytes(const matrix *w) {
    size_t blocks = (size_t)w->inputs / BLOCK;
    if (w->kind == KIND_Q4) return blocks * (Q4_CODE_BYTES + Q4_SCALE_BYTES);
    if (w->kind == KIND_Q8) return blocks * (Q8_CODE_BYTES + Q8_SCALE_BYTES);
    return blocks * F32_BLOCK_BYTES;
}

int panel_count(const matrix *w) { return (w->rows + LANES - 1) / LANES; }

const uint8_t *panel_of(const matrix *w, int index) {
    return w->data + (size_t)index * panel_bytes(w);
}

void take_pair(panel_pair *pair, const matrix *w, int first, int rows, uint8_t *memory) {
    int left = panel_count(w) - first;
    pair->count = left > 1 ? 2 : 1;
    pair->inputs = w->inputs;
    for (int p = 0; p < pair->count; p++) {
        pair->panels[p] = panel_of(w, first + p);
        pair->ahead[p] = panel_of(w, first + p + 2);
        pair->kinds[p] = w->kind;
    }
    prepare(pair, rows, memory);
}

void take_twins(panel_pair *pair, const matrix *a, const matrix *b, int index, int rows,
                uint8_t *memory) {
    const matrix *both[2] = {a, b};
    pair->count = 2;
    pair->inputs = a->inputs;
    for (int p = 0; p < 2; p++) {
        pair->panels[p] = panel_of(both[p], index);
        pair->ahead[p] = panel_of(both[p], index + 1);
        pair->kinds[p] = both[p]->kind;
    }
    prepare(pair, rows, memory);
}

static void multiply_f32(const panel_pair *pair, const float *x, int rows, float *out,
                         int stride) {
    const float *w[2] = {(const float *)pair->panels[0], (const float *)pair->panels[1]};
    int k = pair->inputs;
    for (int r = 0, tile; r < rows; r += tile) {
        const float *at = x + (size_t)r * k;
        float *to = out + (size_t)r * stride;
        tile = pair->count == 1 ? 1 : rows - r >= 6 ? 6 : rows - r >= 4 ? 4 : rows - r >= 2 ? 2 : 1;
        switch (tile) {
            case 6: tile_f32(w, k, at, k, to, stride, 2, 6); break;
            case 4: tile_f32(w, k, at, k, to, stride, 2, 4); break;
            case 2: tile_f32(w, k, at, k, to, stride, 2, 2); break;
            default:
                if (pair->count == 2)
                    tile_f32(w, k, at, k, to, stride, 2, 1);
                else
                    tile_f32(w, k, at, k, to, stride, 1, 1);
        }
    }
}

void multiply_pair(const panel_pair *pair, const operand *x, int first, int rows, float *out,
                   int stride) {
    if (pair->kinds[0] == KIND_F32) {
        multiply_f32(pair, x->floats + (size_t)first * x->inputs, rows, out, stride);
        return;
    }
    rows_in at = rows_from(&x->quantised, first);
    multiply_integers(pair, &at, rows, first, out, stride);
}
