// Small native functions that need no model: 8-bit codes, and the machine's limits.

#pragma GCC diagnostic ignored "-Wunused-function"  // it uses few of the functions in kernels.h

#include "kernels.h"

// Quantises each row so that its largest number becomes 127: codes (n, K) and a scale per row.
extern "C" void quantize(const float *w, int64_t n, int64_t K, int8_t *codes, float *scales) {
  for (int64_t r = 0; r < n; r++) scales[r] = quantize_row(w + r * K, K, codes + r * K);
}

// Reads n floats `times` times. Returns their sum, so that the compiler cannot skip reads.
extern "C" float read_all(const float *p, int64_t n, int64_t times) {
  vec sums[8] = {};
  for (int64_t i = 0; i < times; i++) {
    for (int64_t j = 0; j + 8 * LANES <= n; j += 8 * LANES)
      UNROLL for (int u = 0; u < 8; u++) sums[u] += load(p + j + u * LANES);
    asm volatile("" ::: "memory");  // otherwise the compiler would read only once
  }
  float sum = 0;
  for (int u = 0; u < 8; u++) sum += total(sums[u]);
  return sum;
}

// `times` rounds of 12 independent multiply-adds on whole registers, of which AVX has 16. Returns
// the number of operations in a round.
extern "C" int64_t multiply_adds(int64_t times, float *out) {
  vec sums[12] = {};
  vec x = all(1.0000001f);
  const vec y = all(1e-9f);
  for (int u = 0; u < 12; u++) sums[u] += (float)u;  // distinct, or the compiler computes only one
  for (int64_t i = 0; i < times; i++) {
    UNROLL for (int u = 0; u < 12; u++) sums[u] = sums[u] * x + y;
    HIDE(x);  // otherwise the compiler finds a closed form
  }
  for (int u = 0; u < 12; u++) *out += total(sums[u]);
  return 12 * LANES * 2;
}
