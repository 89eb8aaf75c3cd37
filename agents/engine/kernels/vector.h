/* Eight floats at a time in GCC's vector extensions: AVX2 on x86-64, pairs of NEON registers on aarch64. */
#ifndef VECTOR_H
#define VECTOR_H
#include <stdint.h>

typedef float v8 __attribute__((vector_size(32)));
typedef int32_t v8i __attribute__((vector_size(32)));
typedef float v8u __attribute__((vector_size(32), aligned(4), may_alias));

typedef int8_t b8 __attribute__((vector_size(8), aligned(1), may_alias));
typedef uint8_t u8 __attribute__((vector_size(8), aligned(1), may_alias));
typedef uint16_t h8 __attribute__((vector_size(16), aligned(2), may_alias));

static inline v8 load(const float *p) { return *(const v8u *)p; }
static inline void store(float *p, v8 x) { *(v8u *)p = x; }
static inline v8 all(float x) { return (v8){x, x, x, x, x, x, x, x}; }

/* Eight int8, uint8 or bfloat16 as floats. GCC 12 converts vectors of bytes one by one, hence the intrinsics. */
#ifdef __AVX2__
#include <immintrin.h>
static inline v8 load_int8(const int8_t *p)
{
    return (v8)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)));
}

static inline v8i load_uint8(const uint8_t *p)
{
    return (v8i)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p));
}

static inline v8 load_bf16(const uint16_t *p)
{
    return (v8)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)), 16);
}

static inline v8 to_float(v8i x) { return (v8)_mm256_cvtepi32_ps((__m256i)x); }
#else
static inline v8 to_float(v8i x) { return __builtin_convertvector(x, v8); }

static inline v8 load_int8(const int8_t *p) { return to_float(__builtin_convertvector(*(const b8 *)p, v8i)); }

static inline v8i load_uint8(const uint8_t *p) { return __builtin_convertvector(*(const u8 *)p, v8i); }

static inline v8 load_bf16(const uint16_t *p) { return (v8)(__builtin_convertvector(*(const h8 *)p, v8i) << 16); }
#endif

static inline v8 choose(v8i mask, v8 yes, v8 no) { return (v8)((mask & (v8i)yes) | (~mask & (v8i)no)); }

#ifdef __clang__
#define SHUFFLED(x, ...) __builtin_shufflevector(x, x, __VA_ARGS__)
#else
#define SHUFFLED(x, ...) __builtin_shuffle(x, (v8i){__VA_ARGS__})
#endif

/* Across the lanes, in halves: lane 0 has the result. */
#define ACROSS(x, combine)                                                                                             \
    do {                                                                                                               \
        v8 y = SHUFFLED(x, 4, 5, 6, 7, 0, 1, 2, 3);                                                                    \
        x = combine;                                                                                                   \
        y = SHUFFLED(x, 2, 3, 0, 1, 6, 7, 4, 5);                                                                       \
        x = combine;                                                                                                   \
        y = SHUFFLED(x, 1, 0, 3, 2, 5, 4, 7, 6);                                                                       \
        x = combine;                                                                                                   \
    } while (0)

static inline float sum(v8 x)
{
    ACROSS(x, x + y);
    return x[0];
}

static inline v8 greater(v8 x, v8 y) { return choose(x > y, x, y); }

static inline float largest(v8 x)
{
    ACROSS(x, greater(x, y));
    return x[0];
}

/* e^x, relative error below 2e-7: 2^n e^r with |r| <= ln(2)/2 and the polynomial of Cephes' expf. Saturates. */
static inline v8 exponential(v8 x)
{
    const v8 low = all(-87.0f), high = all(88.0f), round = all(12582912.0f);
    x = choose(x < low, low, x);
    x = choose(x > high, high, x);
    v8 t = x * 1.44269504f + round;
    v8 n = t - round;
    v8 r = x - n * 0.693359375f + n * 2.12194440e-4f;
    v8 p = all(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    /* The low bits of t hold n: added to the exponent. */
    return (v8)((v8i)p + ((v8i)t << 23));
}

#endif
