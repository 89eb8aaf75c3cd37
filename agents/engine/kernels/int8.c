/* Products with 8-bit weights. Called through int8.py, which says what is computed and how weights are laid out.

   Sixteen outputs at a time lie in two vectors, a pair of channels in each lane, so that vpmaddwd adds two products to a
   lane and no sum goes across one. Sums within a group of 32 channels are exact integers; groups are added in order. A
   row's result does not depend on the rows beside it. */
#include <math.h>
#include <stdint.h>
#include "vector.h"

enum { GROUP = 32, LANES = 16, ROWS = 6 };

/* One group of `x`: q = round(x / scale) in 16 bits. Returns the scale; `*total` is scale * sum(q).
   Both are NaN when some x is not a number or infinite: integers would hide it. */
static float quantise(const float *x, int16_t *q, float *total)
{
    v8 most = all(0), broken = all(0);
    for (int i = 0; i < GROUP; i += 8) {
        v8 y = load(x + i);
        y = choose(y < 0, -y, y);
        most = greater(y, most);
        broken += y * 0;
    }
    float size = largest(most), by = size > 1e-30f ? 32767 / size : 0; /* a smaller one would overflow */
    float scale = size / 32767 + sum(broken);
    int32_t all_of_q = 0;
    for (int i = 0; i < GROUP; i++) {
        int32_t whole = (int32_t)rintf(x[i] * by);
        q[i] = (int16_t)whole;
        all_of_q += whole;
    }
    *total = all_of_q * scale;
    return scale;
}

/* sums [n][LANES] += weights [GROUP / 2][LANES][2] times n rows of q. */
static inline __attribute__((always_inline)) void multiply(int n, const uint8_t *weights, const int16_t *q, int64_t step,
                                                           int32_t (*sums)[LANES])
{
#ifdef __AVX2__
    __m256i low[ROWS], high[ROWS];
    for (int r = 0; r < n; r++)
        low[r] = high[r] = _mm256_setzero_si256();
    for (int k = 0; k < GROUP; k += 2, weights += 2 * LANES) {
        __m256i w0 = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)weights));
        __m256i w1 = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(weights + LANES)));
        for (int r = 0; r < n; r++) {
            int32_t pair;
            __builtin_memcpy(&pair, q + r * step + k, 4);
            __m256i x = _mm256_set1_epi32(pair);
            low[r] = _mm256_add_epi32(low[r], _mm256_madd_epi16(w0, x));
            high[r] = _mm256_add_epi32(high[r], _mm256_madd_epi16(w1, x));
            __asm__("" : "+x"(low[r]), "+x"(high[r])); /* keeps the sums in registers; GCC 12 spills them else */
        }
    }
    for (int r = 0; r < n; r++) {
        _mm256_storeu_si256((__m256i *)sums[r], low[r]);
        _mm256_storeu_si256((__m256i *)(sums[r] + 8), high[r]);
    }
#else
    for (int r = 0; r < n; r++) {
        for (int i = 0; i < LANES; i++)
            sums[r][i] = 0;
        for (int k = 0; k < GROUP; k++)
            for (int i = 0; i < LANES; i++)
                sums[r][i] += weights[(k / 2 * LANES + i) * 2 + k % 2] * q[r * step + k];
    }
#endif
}

/* n rows times one block of sixteen outputs. */
static inline __attribute__((always_inline)) void tile(int n, const uint8_t *weights, const float *scales,
                                                       const float *leasts, const int16_t *q, const float *row_scales,
                                                       const float *totals, int k, v8 (*out)[2])
{
    int groups = k / GROUP;
    for (int r = 0; r < n; r++)
        out[r][0] = out[r][1] = all(0);
    for (int g = 0; g < groups; g++, weights += GROUP * LANES, scales += LANES, leasts += LANES) {
        int32_t sums[ROWS][LANES];
        multiply(n, weights, q + g * GROUP, k, sums);
        for (int r = 0; r < n; r++)
            for (int half = 0; half < 2; half++) {
                v8i whole;
                __builtin_memcpy(&whole, sums[r] + 8 * half, 32);
                v8 scaled = to_float(whole) * (load(scales + 8 * half) * row_scales[r * groups + g]);
                out[r][half] += scaled + load(leasts + 8 * half) * totals[r * groups + g];
            }
    }
}

/* out [rows, n] = x [rows, k] times weights; n a multiple of 16, k of 32. scratch: rows * k * 2 + rows * k / 4 bytes. */
void int8_linear(const float *x, int32_t rows, int32_t k, int32_t n, const uint8_t *weights, const float *scales,
                 const float *leasts, float *out, uint8_t *scratch)
{
    int groups = k / GROUP, tiles = (rows + ROWS - 1) / ROWS;
    int16_t *q = (int16_t *)scratch;
    float *row_scales = (float *)(q + (int64_t)rows * k), *totals = row_scales + (int64_t)rows * groups;
    for (int64_t g = 0; g < (int64_t)rows * groups; g++)
        row_scales[g] = quantise(x + g * GROUP, q + g * GROUP, totals + g);
    for (int block = 0; block < n / LANES; block++) {
        const uint8_t *w = weights + (int64_t)block * k * LANES;
        const float *s = scales + (int64_t)block * groups * LANES, *m = leasts + (int64_t)block * groups * LANES;
        for (int t = 0; t < tiles; t++) { /* of equal size, as far as that goes: a small last one would idle */
            v8 part[ROWS][2];
            int r = (int)((int64_t)rows * t / tiles), count = (int)((int64_t)rows * (t + 1) / tiles) - r;
            const int16_t *from = q + (int64_t)r * k;
            const float *rs = row_scales + (int64_t)r * groups, *ts = totals + (int64_t)r * groups;
            switch (count) {
            case 1: tile(1, w, s, m, from, rs, ts, k, part); break;
            case 2: tile(2, w, s, m, from, rs, ts, k, part); break;
            case 3: tile(3, w, s, m, from, rs, ts, k, part); break;
            case 4: tile(4, w, s, m, from, rs, ts, k, part); break;
            case 5: tile(5, w, s, m, from, rs, ts, k, part); break;
            default: tile(ROWS, w, s, m, from, rs, ts, k, part);
            }
            for (int i = 0; i < count; i++) {
                store(out + (int64_t)(r + i) * n + block * LANES, part[i][0]);
                store(out + (int64_t)(r + i) * n + block * LANES + 8, part[i][1]);
            }
        }
    }
}
