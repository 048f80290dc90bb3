/* Geometry of the one model that this library is compiled for, and the sizes that follow from it.
 *
 * The compiler gets the IGN_* constants as -D options. Knowing them at compile time lets it unroll
 * the head and block loops and lay out every scratch buffer once. */
#ifndef IGN_SHAPE_H
#define IGN_SHAPE_H

enum {
    LAYERS = IGN_LAYERS,
    HIDDEN = IGN_HIDDEN,
    QUERY_HEADS = IGN_QUERY_HEADS,
    KV_HEADS = IGN_KV_HEADS,
    HEAD = IGN_HEAD,
    FFN = IGN_FFN,
    VOCABULARY = IGN_VOCABULARY,
    PAGE = IGN_PAGE,

    GROUP = QUERY_HEADS / KV_HEADS,  /* query heads that share one key and value head */
    QUERY_WIDTH = QUERY_HEADS * HEAD,
    KV_WIDTH = KV_HEADS * HEAD,
    QKV_WIDTH = QUERY_WIDTH + 2 * KV_WIDTH,

    LANES = 8,   /* output rows of a weight panel, floats of a vector */
    BLOCK = 32,  /* inputs that share one quantisation scale */

    /* The attention output is an input of a product, so it is padded with zeros to whole blocks. */
    ATTENTION_WIDTH = (QUERY_WIDTH + BLOCK - 1) / BLOCK * BLOCK,
    LOGITS_WIDTH = (VOCABULARY + LANES - 1) / LANES * LANES,

    MAX_INPUT = (FFN > HIDDEN ? (FFN > ATTENTION_WIDTH ? FFN : ATTENTION_WIDTH)
                              : (HIDDEN > ATTENTION_WIDTH ? HIDDEN : ATTENTION_WIDTH)),

#ifdef IGN_FLOAT32
    KV_BYTES = 4, /* of one cached key or value element */
#else
    KV_BYTES = 2,
#endif

    SPAN = 64,  /* cached positions that attention handles at once, aligned to absolute positions */

    MASK_WORDS = (VOCABULARY + 31) / 32, /* of a token mask */

    MAX_TOP = 20,   /* alternatives reported per token */
    MAX_STOPS = 16, /* stop tokens of a row */
    MAX_BIAS = 1024 /* logit bias entries of a row */
};

_Static_assert(QUERY_HEADS % KV_HEADS == 0, "query heads must be a multiple of key/value heads");
_Static_assert(HEAD % LANES == 0, "head size must be a multiple of 8");
_Static_assert(HIDDEN % BLOCK == 0 && FFN % BLOCK == 0, "widths must be multiples of 32");
_Static_assert(PAGE % LANES == 0, "page size must be a multiple of 8 tokens");

#endif
