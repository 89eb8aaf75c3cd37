/* One layer's attention of a step: rotate queries and keys, put keys and values into their blocks, attend.
   Called through native.py. What is computed, and how blocks are laid out: attention.py and kv.py.

   Every row goes through its blocks in order with an online softmax (Milakov and Gimelshein 2018), so its result
   depends neither on the rows beside it nor on how a prompt was cut. The loop over blocks is the outer one: a block that
   neighbouring rows share is unpacked once and attended by all of them (cascade attention at every level of sharing). */
#include <math.h>
#include <string.h>
#include "vector.h"

enum { BLOCK = 16, TILE = 32, CHUNK = 64 };
enum { FP32, BF16, INT8, K8V4 };
static const float NOTHING = -1e30f;

typedef struct {
    int32_t heads, kv_heads, size, format, group, window;
    int64_t head_bytes, key_scales, values, value_scales; /* of one key head in a block: its bytes, and where parts begin */
    const float *cos, *sin;                               /* [context, size / 2] */
    const float *bias, *q_norm, *k_norm;                  /* or null */
    float norm_eps;
} Attention;

typedef struct {
    int32_t table, row, start, count, kept; /* table: where its block numbers begin in `tables` */
} Span;

typedef struct {
    const int32_t *table;
    int32_t row, position;
} Row;

static float from_bf16(uint16_t x)
{
    uint32_t bits = (uint32_t)x << 16;
    float y;
    memcpy(&y, &bits, 4);
    return y;
}

static uint16_t bits_of(float x, uint32_t add)
{
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return (uint16_t)((bits + add) >> 16);
}

static uint16_t to_bf16(float x) /* to nearest, ties to even */
{
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return bits_of(x, 0x7fff + ((bits >> 16) & 1));
}

static uint16_t above_bf16(float x) { return bits_of(x, 0xffff); } /* upwards, for x >= 0 */

static float scale_of(float most, float steps, uint16_t *kept)
{
    *kept = above_bf16(most / steps);
    return from_bf16(*kept);
}

static float quantum(float x, float scale, float least, float most)
{
    float q = scale > 0 ? rintf(x / scale) : 0;
    return q < least ? least : q > most ? most : q;
}

static void write_int8(const float *x, int8_t *to, int step, uint16_t *scales, int scale_step, int size, int group)
{
    for (int g = 0; g < size / group; g++, x += group) {
        float most = 0;
        for (int c = 0; c < group; c++)
            most = fabsf(x[c]) > most ? fabsf(x[c]) : most;
        float scale = scale_of(most, 127, scales + g * scale_step);
        for (int c = 0; c < group; c++)
            to[(g * group + c) * step] = (int8_t)quantum(x[c], scale, -127, 127);
    }
}

static void write_int4(const float *x, uint8_t *to, uint16_t *scales, int size, int group)
{
    uint8_t q[1024];
    for (int g = 0; g < size / group; g++) {
        const float *from = x + g * group;
        float least = from[0], most = from[0];
        for (int c = 1; c < group; c++) {
            least = from[c] < least ? from[c] : least;
            most = from[c] > most ? from[c] : most;
        }
        scales[2 * g + 1] = to_bf16(least);
        least = from_bf16(scales[2 * g + 1]);
        float scale = scale_of(most > least ? most - least : 0, 15, scales + 2 * g);
        for (int c = 0; c < group; c++)
            q[g * group + c] = (uint8_t)quantum(from[c] - least, scale, 0, 15);
    }
    for (int c = 0; c < size / 2; c++)
        to[c] = (uint8_t)(q[c] | q[c + size / 2] << 4);
}

static void write_token(const Attention *a, uint8_t *head, int t, const float *k, const float *v)
{
    int size = a->size;
    uint8_t *values = head + a->values;
    uint16_t *ks = (uint16_t *)(head + a->key_scales) + t;
    if (a->format == FP32) {
        for (int c = 0; c < size; c++)
            ((float *)head)[c * BLOCK + t] = k[c];
        memcpy((float *)values + t * size, v, sizeof(float) * size);
    } else if (a->format == BF16) {
        for (int c = 0; c < size; c++) {
            ((uint16_t *)head)[c * BLOCK + t] = to_bf16(k[c]);
            ((uint16_t *)values)[t * size + c] = to_bf16(v[c]);
        }
    } else {
        int groups = size / a->group;
        uint16_t *vs = (uint16_t *)(head + a->value_scales);
        write_int8(k, (int8_t *)head + t, BLOCK, ks, BLOCK, size, a->group);
        if (a->format == INT8)
            write_int8(v, (int8_t *)values + t * size, 1, vs + t * groups, 1, size, a->group);
        else
            write_int4(v, values + t * size / 2, vs + t * groups * 2, size, a->group);
    }
}

static void read_keys(const Attention *a, const int8_t *packed, const uint16_t *scales, float *keys)
{
    for (int g = 0; g < a->size / a->group; g++, scales += BLOCK) {
        v8 low = load_bf16(scales), high = load_bf16(scales + 8);
        for (int c = g * a->group; c < (g + 1) * a->group; c++) {
            store(keys + c * BLOCK, load_int8(packed + c * BLOCK) * low);
            store(keys + c * BLOCK + 8, load_int8(packed + c * BLOCK + 8) * high);
        }
    }
}

static void read_values8(const Attention *a, const int8_t *packed, const uint16_t *scales, float *values)
{
    int group = a->group;
    for (int g = 0; g < BLOCK * a->size / group; g++, packed += group, values += group) {
        v8 scale = all(from_bf16(scales[g]));
        for (int c = 0; c < group; c += 8)
            store(values + c, load_int8(packed + c) * scale);
    }
}

static void read_values4(const Attention *a, const uint8_t *packed, const uint16_t *scales, float *values)
{
    int half = a->size / 2, group = a->group;
    for (int t = 0; t < BLOCK; t++, packed += half, values += a->size, scales += 2 * (a->size / group)) {
        for (int c = 0; c + 8 <= half; c += 8) {
            v8i pair = load_uint8(packed + c);
            store(values + c, to_float(pair & 15));
            store(values + c + half, to_float(pair >> 4));
        }
        for (int c = half / 8 * 8; c < half; c++) { /* heads of 8, 24, ... channels */
            values[c] = (float)(packed[c] & 15);
            values[c + half] = (float)(packed[c] >> 4);
        }
        for (int c = 0; c < a->size; c += 8) {
            const uint16_t *at = scales + 2 * (c / group);
            store(values + c, load(values + c) * from_bf16(at[0]) + from_bf16(at[1]));
        }
    }
}

/* Unpack a block: keys [size, BLOCK], values [BLOCK, size]. */
static void read_block(const Attention *a, const uint8_t *head, float *keys, float *values)
{
    int size = a->size;
    const uint8_t *packed = head + a->values;
    if (a->format == FP32) {
        memcpy(keys, head, sizeof(float) * size * BLOCK);
        memcpy(values, packed, sizeof(float) * size * BLOCK);
        return;
    }
    if (a->format == BF16) {
        for (int i = 0; i < size * BLOCK; i += 8) {
            store(keys + i, load_bf16((const uint16_t *)head + i));
            store(values + i, load_bf16((const uint16_t *)packed + i));
        }
        return;
    }
    read_keys(a, (const int8_t *)head, (const uint16_t *)(head + a->key_scales), keys);
    if (a->format == INT8)
        read_values8(a, (const int8_t *)packed, (const uint16_t *)(head + a->value_scales), values);
    else
        read_values4(a, packed, (const uint16_t *)(head + a->value_scales), values);
}

static void normalise(float *x, const float *weight, float eps, int n)
{
    float squares = 0;
    for (int i = 0; i < n; i++)
        squares += x[i] * x[i];
    float by = 1 / sqrtf(squares / n + eps);
    for (int i = 0; i < n; i++)
        x[i] *= by * weight[i];
}

/* Rotary positions (Su et al. 2021), halves as Hugging Face pairs them, times `by`. */
static void rotate(float *x, const float *cos, const float *sin, int size, float by)
{
    int half = size / 2;
    for (int i = 0; i < half; i++) {
        float first = x[i], second = x[i + half];
        x[i] = (first * cos[i] - second * sin[i]) * by;
        x[i + half] = (second * cos[i] + first * sin[i]) * by;
    }
}

static void prepare(const Attention *a, uint8_t *blocks, float *x, const Row *row, int write)
{
    int size = a->size, all_heads = a->heads + 2 * a->kv_heads, turned = a->heads + a->kv_heads;
    int64_t block_bytes = a->head_bytes * a->kv_heads;
    const float *cos = a->cos + (int64_t)row->position * size / 2, *sin = a->sin + (int64_t)row->position * size / 2;
    float root = 1 / sqrtf((float)size);
    if (a->bias)
        for (int i = 0; i < all_heads * size; i++)
            x[i] += a->bias[i];
    for (int h = 0; h < turned; h++) {
        const float *norm = h < a->heads ? a->q_norm : a->k_norm;
        if (norm)
            normalise(x + h * size, norm, a->norm_eps, size);
        rotate(x + h * size, cos, sin, size, h < a->heads ? root : 1);
    }
    if (!write)
        return;
    uint8_t *block = blocks + row->table[row->position / BLOCK] * block_bytes;
    for (int h = 0; h < a->kv_heads; h++)
        write_token(a, block + h * a->head_bytes, row->position % BLOCK, x + (a->heads + h) * size,
                    x + (turned + h) * size);
}

/* Scores of `n` queries over a block's keys. Two or more at once: a load of keys serves all, and the sums overlap. */
static inline __attribute__((always_inline)) void score(int n, const float *q, const float *keys, int size,
                                                        float (*scores)[BLOCK])
{
    v8 low[4], high[4];
    for (int i = 0; i < n; i++)
        low[i] = high[i] = all(0);
    for (int c = 0; c < size; c++) {
        v8 k0 = load(keys + c * BLOCK), k1 = load(keys + c * BLOCK + 8);
        for (int i = 0; i < n; i++) {
            v8 x = all(q[i * size + c]);
            low[i] += x * k0;
            high[i] += x * k1;
        }
    }
    for (int i = 0; i < n; i++) {
        store(scores[i], low[i]);
        store(scores[i] + 8, high[i]);
    }
}

/* Only of tokens first to last: the others' places may hold what is no number. */
static void add_values(float *sums, const float *p, const float *values, int size, int first, int last)
{
    for (int c = 0; c < size; c += CHUNK) {
        v8 part[CHUNK / 8];
        int n = (size - c < CHUNK ? size - c : CHUNK) / 8;
        for (int i = 0; i < n; i++)
            part[i] = load(sums + c + 8 * i);
        if (n == CHUNK / 8)
            for (int t = first; t <= last; t++)
                for (int i = 0; i < CHUNK / 8; i++)
                    part[i] += p[t] * load(values + t * size + c + 8 * i);
        else
            for (int t = first; t <= last; t++)
                for (int i = 0; i < n; i++)
                    part[i] += p[t] * load(values + t * size + c + 8 * i);
        for (int i = 0; i < n; i++)
            store(sums + c + 8 * i, part[i]);
    }
}

/* state: the largest score so far, the sum of weights, the weighted values [size]. */
static void update(float *state, float *scores, const float *values, int size, int first, int last)
{
    first = first > 0 ? first : 0;
    last = last < BLOCK - 1 ? last : BLOCK - 1;
    for (int t = 0; t < first; t++)
        scores[t] = NOTHING;
    for (int t = last + 1; t < BLOCK; t++)
        scores[t] = NOTHING;
    v8 s0 = load(scores), s1 = load(scores + 8);
    float most = largest(greater(s0, s1));
    if (most > state[0]) {
        float shrink = exponential(all(state[0] - most))[0];
        state[0] = most;
        state[1] *= shrink;
        for (int c = 0; c < size; c += 8)
            store(state + 2 + c, load(state + 2 + c) * shrink);
    }
    v8 p0 = exponential(s0 - state[0]), p1 = exponential(s1 - state[0]);
    p0 = choose(s0 > all(NOTHING), p0, all(0));
    p1 = choose(s1 > all(NOTHING), p1, all(0));
    state[1] += sum(p0 + p1);
    store(scores, p0);
    store(scores + 8, p1);
    add_values(state + 2, scores, values, size, first, last);
}

static int first_key(const Attention *a, const Row *row)
{
    int first = a->window ? row->position - a->window + 1 : 0;
    return first > 0 ? first : 0;
}

static void attend_row(const Attention *a, const float *q, const float *keys, const float *values, float *state,
                       const Row *row, int block)
{
    int size = a->size, group = a->heads / a->kv_heads;
    int first = first_key(a, row) - block * BLOCK, last = row->position - block * BLOCK;
    for (int i = 0; i < group; i += 4) {
        float scores[4][BLOCK];
        int n = group - i < 4 ? group - i : 4;
        switch (n) {
        case 1: score(1, q + i * size, keys, size, scores); break;
        case 2: score(2, q + i * size, keys, size, scores); break;
        case 3: score(3, q + i * size, keys, size, scores); break;
        default: score(4, q + i * size, keys, size, scores);
        }
        for (int j = 0; j < n; j++)
            update(state + (i + j) * (size + 2), scores[j], values, size, first, last);
    }
}

/* Ask for memory that is needed soon: blocks lie all over it, where the processor cannot foresee them. */
static void fetch(const uint8_t *from, int64_t bytes)
{
    for (int64_t i = 0; i < bytes; i += 64)
        __builtin_prefetch(from + i);
}

static void attend_tile(const Attention *a, const uint8_t *blocks, const float *qkv, float *out, const Row *rows, int n,
                        int head, float *scratch)
{
    int size = a->size, group = a->heads / a->kv_heads, width = (a->heads + 2 * a->kv_heads) * size;
    int64_t block_bytes = a->head_bytes * a->kv_heads;
    float *keys = scratch, *values = keys + size * BLOCK, *states = values + size * BLOCK;
    int from = INT32_MAX, to = 0;
    for (int r = 0; r < n; r++) {
        int first = first_key(a, rows + r) / BLOCK, last = rows[r].position / BLOCK;
        from = first < from ? first : from;
        to = last > to ? last : to;
        for (int i = 0; i < group; i++) {
            float *state = states + (r * group + i) * (size + 2);
            memset(state, 0, sizeof(float) * (size + 2));
            state[0] = NOTHING;
        }
    }
    for (int b = from; b <= to; b++) {
        int unpacked = -1;
        for (int r = 0; r < n; r++) {
            const Row *row = rows + r;
            if (b < first_key(a, row) / BLOCK || b > row->position / BLOCK || row->table[b] < 0)
                continue; /* negative: in the window, but lost; a replay goes on without it */
            if (row->table[b] != unpacked) {
                unpacked = row->table[b];
                read_block(a, blocks + unpacked * block_bytes + head * a->head_bytes, keys, values);
                if (b < row->position / BLOCK && row->table[b + 1] >= 0)
                    fetch(blocks + row->table[b + 1] * block_bytes + head * a->head_bytes, a->head_bytes);
            }
            attend_row(a, qkv + (int64_t)row->row * width + head * group * size, keys, values,
                       states + r * group * (size + 2), row, b);
        }
    }
    for (int r = 0; r < n; r++)
        for (int i = 0; i < group; i++) {
            const float *state = states + (r * group + i) * (size + 2);
            float *to_row = out + ((int64_t)rows[r].row * a->heads + head * group + i) * size;
            for (int c = 0; c < size; c++)
                to_row[c] = state[2 + c] / state[1];
        }
}

/* Floats that `attend` needs as scratch. */
int64_t attend_scratch(const Attention *a)
{
    return 2 * a->size * BLOCK + (int64_t)TILE * (a->heads / a->kv_heads) * (a->size + 2);
}

/* qkv: [rows, (heads + 2 kv_heads) size], overwritten; out: [rows, heads size]; blocks: those of one layer. */
void attend(const Attention *a, uint8_t *blocks, float *qkv, float *out, const Span *spans, int32_t n,
            const int32_t *tables, float *scratch)
{
    int width = (a->heads + 2 * a->kv_heads) * a->size;
    for (int s = 0; s < n; s++)
        for (int i = 0; i < spans[s].count; i++) {
            Row row = {tables + spans[s].table, spans[s].row + i, spans[s].start + i};
            prepare(a, blocks, qkv + (int64_t)row.row * width, &row, row.position >= spans[s].kept);
        }
    Row tile[TILE];
    int filled = 0;
    for (int s = 0; s < n; s++)
        for (int i = 0; i < spans[s].count; i++) {
            tile[filled++] = (Row){tables + spans[s].table, spans[s].row + i, spans[s].start + i};
            if (filled < TILE && (s + 1 < n || i + 1 < spans[s].count))
                continue;
            for (int head = 0; head < a->kv_heads; head++)
                attend_tile(a, blocks, qkv, out, tile, filled, head, scratch);
            filled = 0;
        }
}
