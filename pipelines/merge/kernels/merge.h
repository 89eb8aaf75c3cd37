// Float types of checkpoints. Called by merge.c.
#ifndef TRAJMILL_MERGE_H
#define TRAJMILL_MERGE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum dtype { F32, F16, BF16 };

// What an mmap or a safetensors file holds need not be aligned.
typedef uint16_t __attribute__((aligned(1), may_alias)) half_bits;
typedef uint32_t __attribute__((aligned(1), may_alias)) word_bits;
typedef float __attribute__((aligned(1), may_alias)) loose_float;

static inline float as_float(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint32_t as_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

// IEEE half to float, exactly; a NaN becomes quiet, as the processor makes it.
static inline float half_to_float(uint16_t half) {
    uint32_t sign = (uint32_t)(half & 0x8000) << 16, rest = half & 0x7FFF;
    if (rest < 0x400)  // zero or subnormal: a multiple of 2^-24
        return as_float(sign | as_bits((float)rest * 0x1p-24f));
    if (rest < 0x7C00)
        return as_float(sign | ((rest << 13) + (112u << 23)));
    return as_float(sign | 0x7F800000u | (rest & 0x3FF) << 13 | (rest > 0x7C00 ? 0x400000u : 0));
}

// Float to IEEE half, to nearest, ties to even.
static inline uint16_t float_to_half(float value) {
    uint32_t bits = as_bits(value), sign = bits >> 16 & 0x8000, rest = bits & 0x7FFFFFFF;
    if (rest > 0x7F800000u)
        return (uint16_t)(sign | 0x7E00 | (rest >> 13 & 0x3FF));
    if (rest >= 0x477FF000u)  // 65520 rounds to infinity
        return (uint16_t)(sign | 0x7C00);
    if (rest < 0x38800000u)  // below 2^-14; adding a half leaves the multiple of 2^-24 in the low bits, rounded
        return (uint16_t)(sign | (as_bits(as_float(rest) + 0.5f) - 0x3F000000u));
    return (uint16_t)(sign | (rest + 0xFFF + (rest >> 13 & 1) - (112u << 23)) >> 13);
}

#endif
