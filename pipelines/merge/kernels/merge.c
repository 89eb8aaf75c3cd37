// Kernels of the merge. Called by pipelines/merge/native.py, which holds the contracts. Each gives numpy's bits: every
// product and every sum is rounded to float on its own (-ffp-contract=off), in the order of the models.
#include "merge.h"

#ifdef __F16C__
#include <immintrin.h>
#endif

enum { BLOCK = 2048 };  // floats that stay in the first cache

static void widen(const uint8_t *raw, int dtype, ptrdiff_t n, float *restrict out) {
    ptrdiff_t i = 0;
    if (dtype == F32) {
        memcpy(out, raw, (size_t)n * sizeof(float));
    } else if (dtype == BF16) {
        uint32_t *restrict bits = (uint32_t *)(void *)out;
        const half_bits *from = (const half_bits *)raw;
        for (; i < n; i++) {
            uint32_t word = (uint32_t)from[i] << 16;
            memcpy(bits + i, &word, sizeof word);
        }
    } else {
        const half_bits *from = (const half_bits *)raw;
#ifdef __F16C__
        for (; i + 8 <= n; i += 8)
            _mm256_storeu_ps(out + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(from + i))));
#endif
        for (; i < n; i++)
            out[i] = half_to_float(from[i]);
    }
}

// Whether all are finite once rounded.
static int narrow(const float *restrict values, int dtype, ptrdiff_t n, uint8_t *restrict raw) {
    static const uint32_t limits[] = {[F32] = 0x7F800000u, [F16] = 0x477FF000u, [BF16] = 0x7F7F8000u};
    uint32_t largest = 0;
    ptrdiff_t i = 0;
    for (ptrdiff_t k = 0; k < n; k++) {
        uint32_t size = as_bits(values[k]) & 0x7FFFFFFF;
        largest = size > largest ? size : largest;
    }
    if (dtype == F32) {
        memcpy(raw, values, (size_t)n * sizeof(float));
    } else if (dtype == BF16) {
        half_bits *to = (half_bits *)raw;
        for (; i < n; i++) {
            uint32_t bits = as_bits(values[i]);
            to[i] = (uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
        }
    } else {
        half_bits *to = (half_bits *)raw;
#ifdef __F16C__
        for (; i + 8 <= n; i += 8)
            _mm_storeu_si128((__m128i *)(void *)(to + i), _mm256_cvtps_ph(_mm256_loadu_ps(values + i), 0));
#endif
        for (; i < n; i++)
            to[i] = float_to_half(values[i]);
    }
    return largest < limits[dtype];
}

void merge_widen(const uint8_t *raw, int dtype, ptrdiff_t n, float *out) { widen(raw, dtype, n, out); }

int merge_narrow(const float *values, int dtype, ptrdiff_t n, uint8_t *raw) { return narrow(values, dtype, n, raw); }

static void scale(const float *restrict x, float weight, ptrdiff_t n, float *restrict out) {
    for (ptrdiff_t i = 0; i < n; i++)
        out[i] = x[i] * weight;
}

static void add_scaled(const float *restrict x, float weight, ptrdiff_t n, float *restrict out) {
    for (ptrdiff_t i = 0; i < n; i++)
        out[i] += x[i] * weight;
}

static void add_scaled_bf16(const half_bits *restrict x, float weight, ptrdiff_t n, float *restrict out) {
    for (ptrdiff_t i = 0; i < n; i++)
        out[i] += as_float((uint32_t)x[i] << 16) * weight;
}

int merge_weighted_sum(const uint8_t *const *sources, const int *dtypes, const float *weights, int models, ptrdiff_t n,
                       uint8_t *out, int out_dtype) {
    float sum[BLOCK], values[BLOCK];
    int finite = 1;
    for (ptrdiff_t start = 0; start < n; start += BLOCK) {
        ptrdiff_t count = n - start < BLOCK ? n - start : BLOCK;
        for (int m = 0; m < models; m++) {
            const uint8_t *raw = sources[m] + start * (dtypes[m] == F32 ? 4 : 2);
            if (m > 0 && dtypes[m] == BF16) {
                add_scaled_bf16((const half_bits *)raw, weights[m], count, sum);
                continue;
            }
            widen(raw, dtypes[m], count, values);
            (m == 0 ? scale : add_scaled)(values, weights[m], count, sum);
        }
        finite &= narrow(sum, out_dtype, count, out + start * (out_dtype == F32 ? 4 : 2));
    }
    return finite;
}

void merge_weighted_sum_f32(const float *const *sources, const float *weights, int models, ptrdiff_t n, float *out) {
    float sum[BLOCK];  // out may be one of the sources
    for (ptrdiff_t start = 0; start < n; start += BLOCK) {
        ptrdiff_t count = n - start < BLOCK ? n - start : BLOCK;
        for (int m = 0; m < models; m++)
            (m == 0 ? scale : add_scaled)(sources[m] + start, weights[m], count, sum);
        memcpy(out + start, sum, (size_t)count * sizeof(float));
    }
}

void merge_histogram(const float *values, const float *base, ptrdiff_t n, int64_t *counts, int bucket) {
    uint32_t bits[BLOCK];
    for (ptrdiff_t start = 0; start < n; start += BLOCK) {
        ptrdiff_t count = n - start < BLOCK ? n - start : BLOCK;
        for (ptrdiff_t i = 0; i < count; i++)
            bits[i] = as_bits(base ? values[start + i] - base[start + i] : values[start + i]) & 0x7FFFFFFF;
        for (ptrdiff_t i = 0; i < count; i++) {
            if (bucket < 0)
                counts[bits[i] >> 16]++;
            else if (bits[i] >> 16 == (uint32_t)bucket)
                counts[bits[i] & 0xFFFF]++;
        }
    }
}

int64_t merge_keep_top(float *delta, ptrdiff_t n, uint32_t threshold, int64_t equal_left) {
    for (ptrdiff_t start = 0; start < n; start += BLOCK) {
        ptrdiff_t count = n - start < BLOCK ? n - start : BLOCK;
        float *values = delta + start;
        int equal = 0;
        for (ptrdiff_t i = 0; i < count; i++)
            equal += (as_bits(values[i]) & 0x7FFFFFFF) == threshold;
        if (equal_left <= 0 || equal <= equal_left) {
            uint32_t least = equal_left > 0 ? threshold : threshold + 1;  // bits of a magnitude: no overflow
            for (ptrdiff_t i = 0; i < count; i++)
                values[i] = (as_bits(values[i]) & 0x7FFFFFFF) >= least ? values[i] : 0.0f;
            equal_left -= equal_left > 0 ? equal : 0;
            continue;
        }
        for (ptrdiff_t i = 0; i < count; i++) {
            uint32_t size = as_bits(values[i]) & 0x7FFFFFFF;
            if (size < threshold || (size == threshold && equal_left-- <= 0))
                values[i] = 0.0f;
        }
        equal_left = 0;  // the equal ones of this block took the rest
    }
    return equal_left;
}

void merge_ties_sum(const float *const *deltas, const float *weights, int models, const float *base, float factor,
                    int normalize, ptrdiff_t n, float *out) {
    float total[BLOCK], agreed[BLOCK], divisor[BLOCK];  // out may be one of the deltas
    for (ptrdiff_t start = 0; start < n; start += BLOCK) {
        ptrdiff_t count = n - start < BLOCK ? n - start : BLOCK;
        memset(total, 0, sizeof total);
        memset(agreed, 0, sizeof agreed);
        memset(divisor, 0, sizeof divisor);
        for (int m = 0; m < models; m++)
            add_scaled(deltas[m] + start, weights[m], count, total);
        for (int m = 0; m < models; m++) {
            const float *delta = deltas[m] + start;
            float weight = weights[m];
            for (ptrdiff_t i = 0; i < count; i++) {
                float weighted = delta[i] * weight;
                int agrees = total[i] >= 0 ? weighted > 0 : weighted < 0;
                agreed[i] += agrees ? weighted : 0.0f;
                divisor[i] += agrees ? weight : 0.0f;
            }
        }
        if (normalize)
            for (ptrdiff_t i = 0; i < count; i++)
                agreed[i] /= divisor[i] == 0 ? 1.0f : divisor[i];
        for (ptrdiff_t i = 0; i < count; i++) {
            float change = agreed[i] * factor;
            out[start + i] = base[start + i] + change;
        }
    }
}
