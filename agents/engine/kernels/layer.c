/* What a decoder layer does between its products, each in one pass over the rows. Called through native.py. */
#include <math.h>
#include "vector.h"

/* x += delta (unless null); out = x / rms(x) * weight (Zhang and Sennrich 2019). All [rows, n], n a multiple of 8. */
void add_norm(float *x, const float *delta, const float *weight, float eps, int32_t rows, int32_t n, float *out)
{
    for (int r = 0; r < rows; r++, x += n, out += n) {
        v8 squares[4] = {all(0), all(0), all(0), all(0)};
        for (int i = 0; i < n; i += 8) {
            v8 y = load(x + i);
            if (delta) {
                y += load(delta + i);
                store(x + i, y);
            }
            squares[i / 8 % 4] += y * y;
        }
        float mean = sum((squares[0] + squares[1]) + (squares[2] + squares[3])) / n;
        float by = 1 / sqrtf(mean + eps);
        for (int i = 0; i < n; i += 8)
            store(out + i, load(x + i) * by * load(weight + i));
        if (delta)
            delta += n;
    }
}

/* out [rows, n] = silu(gate) * up, from gate_up [rows, 2 n] (Shazeer 2020). n a multiple of 8. */
void silu_mul(const float *gate_up, int32_t rows, int32_t n, float *out)
{
    for (int r = 0; r < rows; r++, gate_up += 2 * n, out += n)
        for (int i = 0; i < n; i += 8) {
            v8 gate = load(gate_up + i);
            store(out + i, gate / (1 + exponential(-gate)) * load(gate_up + n + i));
        }
}
