// Kernels of a decoder: matrix products, norms, activations, rotary embeddings, attention, sampling.
// The work is split among threads one level above, in decoder.cpp.
//
// The decode loop and serving (decoder.cpp) share these kernels. All of them obey one rule: a row
// (one token of one text) gets the same bits alone, in any batch, and with any chunking of its
// prompt. So every sum of a row has a fixed order, which depends only on the shape of the model.
//
// LANES floats fill a vector register. Matrices are stored in panels: LANES outputs side by side,
// (panels, K, LANES), zero-padded after the last output. A product then needs no sum across lanes.

#pragma once
#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <new>
#include <type_traits>
#include <vector>

#include "shared_types.h"  // the enums of a DecoderConfig, written by decoder_library.py
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#if defined(__AVX512BW__)
constexpr int LANES = 16;
constexpr int REGISTERS = 32;
#elif defined(__AVX2__) && defined(__FMA__)
constexpr int LANES = 8;
constexpr int REGISTERS = 16;
#elif defined(__aarch64__)
constexpr int LANES = 4;
constexpr int REGISTERS = 32;
#else
constexpr int LANES = 4;
constexpr int REGISTERS = 16;
#endif

#define INLINE static inline __attribute__((always_inline))
// Marks a function that is not inlined, so that every row runs the same instructions.
#define ONE_COPY static __attribute__((noinline))
#define UNROLL _Pragma("GCC unroll 16")

// Vector types of GCC and Clang: + and * work lane by lane.
typedef float vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t ints __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

constexpr int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

// Row stride in floats: an odd number of cache lines. With an even number, rows would map to few
// cache sets and evict each other.
constexpr int64_t spread(int64_t n) { return (round_up(n, 16) / 16 | 1) * 16; }

// An allocator of memory that is aligned to a cache line.
template <class T>
struct OnLine {
  typedef T value_type;
  static constexpr std::align_val_t LINE{64};
  OnLine() = default;
  template <class U>
  OnLine(const OnLine<U> &) {}
  T *allocate(size_t n) { return (T *)::operator new(n * sizeof(T), LINE); }
  void deallocate(T *p, size_t) { ::operator delete(p, LINE); }
  bool operator==(const OnLine &) const { return true; }
  bool operator!=(const OnLine &) const { return false; }
};
typedef std::vector<float, OnLine<float>> Floats;

INLINE vec load(const float *p) { return *(const vec *)p; }
INLINE void store(float *p, vec v) { *(vec *)p = v; }
INLINE vec all(float x) { return vec{} + x; }
INLINE vec larger(vec a, vec b) { return a > b ? a : b; }

// Hides from the compiler how a value was computed, so that it cannot reorder a sum.
#if defined(__x86_64__)
#define HIDE(v) asm volatile("" : "+x"(v))
#else
#define HIDE(v) asm volatile("" : "+w"(v))
#endif

// a · b + c with a single rounding, in exactly this order.
INLINE vec multiply_add(vec a, vec b, vec c) {
#if defined(__AVX512BW__)
  return (vec)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__AVX2__) && defined(__FMA__)
  return (vec)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
  c = a * b + c;
  HIDE(c);
  return c;
#endif
}

// Reduces all lanes to one number, halving each time, so that few operations depend on each other.
template <class Lanes, class Join>
INLINE float fold(Lanes v, Join join) {
  typedef float half __attribute__((vector_size(sizeof v / 2)));
  if constexpr (sizeof v == 16) {
    return join(join(v[0], v[2]), join(v[1], v[3]));
  } else {
    half halves[2];
    std::memcpy(halves, &v, sizeof v);
    return fold(join(halves[0], halves[1]), join);
  }
}
INLINE float total(vec v) {
  return fold(v, [](auto a, auto b) { return a + b; });
}
INLINE float highest(vec v) {
  return fold(v, [](auto a, auto b) { return a > b ? a : b; });
}

// e^x for x <= 0 with a relative error of about 2e-7: 2^n, by adding n to the exponent bits, times a
// polynomial for the remainder, which is 1 at 0. Below -87 it returns e^-87.
INLINE vec exponential(vec x) {
  x = larger(x, all(-87.0f));
  constexpr float SHIFT = 3 << 22;        // adding it puts a whole number into the last bits
  vec shifted = x * 1.44269504f + SHIFT;  // x / ln 2, rounded
  HIDE(shifted);
  const vec whole = shifted - SHIFT;
  vec f = x - whole * 0.693359375f;  // ln 2 in two parts, the first of them exact
  HIDE(f);
  f += whole * 2.12194440e-4f;
  vec p = 8.3125e-3f * f + 4.189033e-2f;
  p = p * f + 1.6667116e-1f;
  p = p * f + 4.999923e-1f;
  p = p * f + 1.0f;
  p = p * f + 1.0f;
  return (vec)((ints)p + ((ints)shifted << 23));
}

// ---------------------------------------------------------------- products

constexpr int MOST_ROWS = 6;          // rows whose sums are in registers at the same time
// Likewise for panels. They are read side by side, as several streams that the processor prefetches:
// six gave 20 GB/s from memory where one gave 15 (Zen 3).
constexpr int MOST_PANELS = 6;
constexpr int64_t DEPTH = 128;        // terms of a sum before it goes to memory: panels stay in L1
constexpr int64_t ROW_BYTES = 3 << 16;  // rows multiplied by the same panels: 196 KB stay in any L2 cache

constexpr int LINE = std::max(1, 16 / LANES);  // terms of a panel in a cache line
// If memory and registers are both busy, prefetching helps: from 3 rows on, with a matrix too large
// for an L2 cache. A batch of 8 was 1.07 times faster at 10.8M weights, and slower at 0.37M. A single
// row was 1.12 times faster with registers of 16 floats, and not with 8 (Zen 4, weights in memory).
// With up to FEW blocks of rows, each block prefetches; with more, only the last.
constexpr int64_t LARGE = 1 << 19;
constexpr int64_t FEW = 4;

template <int N>
using Number = std::integral_constant<int, N>;

// Calls use(Number<n>{}), for 1 <= n <= MOST: turns a runtime number into a compile-time one.
template <int MOST, class Use>
INLINE void with_number(int n, Use use) {
  if constexpr (MOST > 1) {
    if (n < MOST) return with_number<MOST - 1>(n, use);
  }
  use(Number<MOST>{});
}

// Whether the sums of R rows and P panels fit in registers, together with the smaller set of
// operands and `more` temporary values.
constexpr bool fits(int R, int P, int more) {
  return R * P + std::min(R, P) + more <= REGISTERS && P <= MOST_PANELS;
}
constexpr int most_panels(int R, int more) {
  int P = 1;
  while (fits(R, P + 1, more)) P++;
  return P;
}

// A piece of a product whose sums fit in registers.
struct Piece {
  int64_t row;     // its first row
  int64_t panel;   // its first panel, counted over the whole matrix
  int64_t k;       // its first term
  int64_t depth;   // number of terms
  int64_t ahead;   // panels · K + terms: where the next piece of weights begins
  bool fetches;    // whether it prefetches the next weights
};

// Splits a product into pieces: part(R, P, piece) computes R rows and P panels.
template <int MORE, class Part>
INLINE void pieces(int64_t N, int64_t panels, int64_t K, int64_t depth, int64_t row_bytes,
                   Part part) {
  const int64_t most = std::max<int64_t>(1, ROW_BYTES / row_bytes / MOST_ROWS) * MOST_ROWS;
  int64_t rows;
  for (int64_t begin = 0; begin < N; begin += rows) {
    const int64_t passes = (N - begin + most - 1) / most;  // over the weights, of equally many rows
    rows = std::min(N - begin, round_up((N - begin + passes - 1) / passes, MOST_ROWS));
    // Make blocks of rows as even as possible: 8 rows become 4 and 4.
    const int64_t blocks = (rows + MOST_ROWS - 1) / MOST_ROWS;
    const int widest = (rows + blocks - 1) / blocks;
    int64_t limit = 1;
    with_number<MOST_ROWS>(widest, [&](auto R) { limit = most_panels(R, MORE); });
    const int64_t strips = (panels + limit - 1) / limit;
    Piece piece;
    piece.panel = 0;
    for (int64_t s = 0; s < strips; s++) {
      const int width = (panels - piece.panel) / (strips - s);
      for (piece.k = 0; piece.k < K; piece.k += depth) {
        piece.depth = std::min(depth, K - piece.k);
        const bool ends = piece.k + depth >= K;
        piece.ahead = ends ? (piece.panel + width) * K : piece.panel * K + piece.k + depth;
        piece.row = begin;
        for (int64_t b = 0; b < blocks; b++) {
          const int n = (begin + rows - piece.row) / (blocks - b);
          piece.fetches = (blocks <= FEW || b == blocks - 1) && panels * LANES * row_bytes > LARGE;
          with_number<MOST_ROWS>(n, [&](auto R) {
            with_number<most_panels(R, MORE)>(width, [&](auto P) { part(R, P, piece); });
          });
          piece.row += n;
        }
      }
      piece.panel += width;
    }
  }
}

// one(r, p, x, w) adds the product of row r's number x and panel p's weights w. The smaller set of
// operands is held in registers, and the larger one is streamed.
template <int R, int P, class Value, class Weight, class One>
INLINE void outer(Value value, Weight weight, One one) {
  if constexpr (R < P) {
    decltype(value(0)) x[R];
    UNROLL for (int r = 0; r < R; r++) x[r] = value(r);
    UNROLL for (int p = 0; p < P; p++) {
      const auto w = weight(p);
      UNROLL for (int r = 0; r < R; r++) one(r, p, x[r], w);
    }
  } else {
    decltype(weight(0)) w[P];
    UNROLL for (int p = 0; p < P; p++) w[p] = weight(p);
    UNROLL for (int r = 0; r < R; r++) {
      const auto x = value(r);
      UNROLL for (int p = 0; p < P; p++) one(r, p, x, w[p]);
    }
  }
}

// out (N, stride) = x (N, …) times a float32 matrix in panels.
INLINE void product(const float *w, int64_t panels, int64_t K, const float *x, int64_t x_stride,
                    int64_t N, float *out, int64_t stride) {
  auto part = [&](auto R, auto P, const Piece &piece) {
    const float *weights = w + (piece.panel * K + piece.k) * LANES;
    const float *values = x + piece.row * x_stride + piece.k;
    float *to = out + piece.row * stride + piece.panel * LANES;
    const int64_t gap = K * LANES;
    vec sums[R][P];
    for (int r = 0; r < R; r++)
      for (int p = 0; p < P; p++)
        sums[r][p] = piece.k ? load(to + r * stride + p * LANES) : vec{};
    auto term = [&](int64_t i) __attribute__((always_inline)) {
      outer<R, P>([&](int r) { return all(values[r * x_stride + i]); },
                  [&](int p) { return load(weights + p * gap + i * LANES); },
                  [&](int r, int p, vec a, vec b) { sums[r][p] = multiply_add(a, b, sums[r][p]); });
    };
    int64_t i = 0;
    if ((R >= 3 || (R == 1 && LANES == 16)) && piece.fetches) {
      constexpr int WIDTH = P;
      const float *ahead = w + piece.ahead * LANES;
      for (; i + LINE <= piece.depth; i += LINE) {
        UNROLL for (int p = 0; p < WIDTH; p++)
          __builtin_prefetch(ahead + p * gap + i * LANES, 0, 2);
        UNROLL for (int u = 0; u < LINE; u++) term(i + u);
      }
    }
    for (; i < piece.depth; i++) term(i);
    for (int r = 0; r < R; r++)
      for (int p = 0; p < P; p++) store(to + r * stride + p * LANES, sums[r][p]);
  };
  pieces<1>(N, panels, K, DEPTH, K * sizeof(float), part);
}

// ---------------------------------------------------------------- products with 8-bit weights

// A weight is a code from -127 to 127 times the scale of its row. Activation rows are rounded to
// 16-bit codes, so that products are between integers: two terms of an output are adjacent,
// (panels, K / 2, LANES, 2), and one instruction multiplies and adds both. Integer sums of GROUP
// terms are exact, and the sums of groups are added as floats. 16-bit rows were faster than float
// rows, and as fast as 8-bit rows, which cost quality.
constexpr int64_t GROUP = 128;

// `both`: a row's pair of codes in every lane. `load_pairs`: LANES pairs of weights. `add_products`:
// adds the products of the two.
#if defined(__AVX512BW__)
typedef __m512i pairs;
INLINE pairs both(int32_t x) { return _mm512_set1_epi32(x); }
INLINE pairs load_pairs(const int8_t *w) {
  return _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i *)w));
}
INLINE ints add_products(ints sum, pairs x, pairs w) {
  return sum + (ints)_mm512_madd_epi16(x, w);
}
#elif defined(__AVX2__)
typedef __m256i pairs;
INLINE pairs both(int32_t x) { return _mm256_set1_epi32(x); }
INLINE pairs load_pairs(const int8_t *w) {
  return _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)w));
}
INLINE ints add_products(ints sum, pairs x, pairs w) {
  return sum + (ints)_mm256_madd_epi16(x, w);
}
#else
typedef ints pairs;
INLINE pairs both(int32_t x) { return ints{} + x; }
INLINE pairs load_pairs(const int8_t *w) {
  typedef int8_t bytes __attribute__((vector_size(2 * LANES), aligned(1), may_alias));
  typedef int16_t shorts __attribute__((vector_size(4 * LANES)));
  return (ints)__builtin_convertvector(*(const bytes *)w, shorts);
}
INLINE ints add_products(ints sum, pairs x, pairs w) {
  return sum + (x << 16 >> 16) * (w << 16 >> 16) + (x >> 16) * (w >> 16);
}
#endif

// out (N, stride) = N rows of K codes, in units of units[row], times a matrix of codes in panels.
// scales (panels, LANES).
INLINE void product(const int8_t *w, const float *scales, int64_t panels, int64_t K,
                    const int16_t *x, const float *units, int64_t N, float *out, int64_t stride) {
  auto part = [&](auto R, auto P, const Piece &piece) {
    const int8_t *weights = w + (piece.panel * K + piece.k) * LANES;
    const int16_t *values = x + piece.row * K + piece.k;
    const int64_t gap = K * LANES;
    const int64_t x_stride = K;
    ints sums[R][P] = {};
    // The terms of a group are few, so each of the streams is left again after a kilobyte, before the
    // processor prefetches it. Asking for the next group meanwhile gave 17 GB/s instead of 11 with
    // AVX2 and 21 instead of 15 with AVX-512 (Zen 4, one row, weights in memory).
    constexpr int WIDTH = P;
    const int8_t *ahead = w + piece.ahead * LANES;
    for (int64_t i = 0; i < piece.depth; i += 2, weights += 2 * LANES) {
      if (piece.fetches && i * LANES % 64 == 0) {
        UNROLL for (int p = 0; p < WIDTH; p++)
          __builtin_prefetch(ahead + p * gap + i * LANES, 0, 2);
      }
      outer<R, P>(
          [&](int r) {
            int32_t pair;
            std::memcpy(&pair, values + r * x_stride + i, sizeof pair);
            return both(pair);
          },
          [&](int p) { return load_pairs(weights + p * gap); },
          [&](int r, int p, pairs a, pairs b) { sums[r][p] = add_products(sums[r][p], a, b); });
    }
    for (int r = 0; r < R; r++)
      for (int p = 0; p < P; p++) {
        const int64_t panel = piece.panel + p;
        float *to = out + (piece.row + r) * stride + panel * LANES;
        const vec scale = load(scales + panel * LANES);
        const vec sum = __builtin_convertvector(sums[r][p], vec);
        store(to, multiply_add(sum, scale * units[piece.row + r], piece.k ? load(to) : vec{}));
      }
  };
  pieces<2>(N, panels, K, GROUP, K * sizeof(int16_t), part);
}

// Rounds a row to 16-bit codes: its largest number becomes 32767. Returns the value of code 1.
ONE_COPY float round_row(const float *x, int64_t n, int16_t *codes, int64_t padded) {
  vec tops = {};
  int64_t i = 0;
  for (; i + LANES <= n; i += LANES) tops = larger(tops, larger(load(x + i), -load(x + i)));
  float top = std::max(highest(tops), 1e-30f);  // of a row of zeros, so that 32767 / top is finite
  for (; i < n; i++) top = std::max(top, std::fabs(x[i]));
  const float inverse = 32767 / top;
  for (i = 0; i < n; i++) codes[i] = (int16_t)(int32_t)__builtin_rintf(x[i] * inverse);
  for (; i < padded; i++) codes[i] = 0;
  return top / 32767;
}

// ---------------------------------------------------------------- packing

// Whether none of n numbers is NaN or infinite. Looks at bits, as integers: with -ffinite-math-only
// the compiler may assume that every number is finite.
static bool all_finite(const float *x, int64_t n) {
  constexpr int32_t EXPONENT = 0x7f800000;  // all of these bits are set in NaN and infinity only
  int32_t wrong = 0;
  for (int64_t i = 0; i < n; i++) {
    int32_t bits;
    memcpy(&bits, x + i, sizeof bits);
    wrong |= (bits & EXPONENT) == EXPONENT;
  }
  return !wrong;
}

// XORs the two halves of the product of two 64-bit numbers.
INLINE uint64_t folded(uint64_t a, uint64_t b) {
  const unsigned __int128 product = (unsigned __int128)a * b;
  return (uint64_t)product ^ (uint64_t)(product >> 64);
}

// A 64-bit hash of all bytes. Two chains read the first half and two the second, because the
// processor prefetches more from two streams. The multiply-and-fold step is that of wyhash (Wang Yi,
// https://github.com/wangyi-fudan/wyhash).
static uint64_t fingerprint(const void *data, int64_t bytes) {
  constexpr uint64_t ODD[4] = {0x9e3779b97f4a7c15, 0xbf58476d1ce4e5b9, 0x94d049bb133111eb,
                               0xd6e8feb86659fd93};
  uint64_t chains[4] = {1, 2, 3, 4};
  const int64_t steps = bytes / 64;
  const char *left = (const char *)data;
  const char *right = left + 32 * steps;
  uint64_t words[8];
  for (int64_t i = 0; i < steps; i++) {
    memcpy(words, left + 32 * i, 32);
    memcpy(words + 4, right + 32 * i, 32);
    UNROLL for (int j = 0; j < 4; j++)
      chains[j] = folded(words[2 * j] ^ ODD[j], words[2 * j + 1] ^ chains[j]);
  }
  memset(words, 0, sizeof words);
  memcpy(words, left + 64 * steps, bytes - 64 * steps);
  uint64_t result = (uint64_t)bytes;
  for (uint64_t word : words) result = folded(result ^ ODD[0], word ^ ODD[1]);
  for (uint64_t chain : chains) result = folded(result ^ ODD[2], chain ^ ODD[3]);
  return result;
}

#if defined(__AVX2__)
// Transposes 8 × 8 numbers: from rows `stride` apart to columns LANES apart.
INLINE void transpose(const float *rows, int64_t stride, float *columns) {
  __m256 r[8];
  __m256 pairs[8];
  UNROLL for (int i = 0; i < 8; i++) r[i] = _mm256_loadu_ps(rows + i * stride);
  UNROLL for (int i = 0; i < 8; i += 2) {
    pairs[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
    pairs[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
  }
  UNROLL for (int i = 0; i < 8; i += 4) {  // four rows at a time: columns 0 and 4, 1 and 5, …
    r[i] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], 0x44);
    r[i + 1] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], 0xee);
    r[i + 2] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], 0x44);
    r[i + 3] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], 0xee);
  }
  UNROLL for (int i = 0; i < 4; i++) {
    _mm256_storeu_ps(columns + i * LANES, _mm256_permute2f128_ps(r[i], r[i + 4], 0x20));
    _mm256_storeu_ps(columns + (i + 4) * LANES, _mm256_permute2f128_ps(r[i], r[i + 4], 0x31));
  }
}
#endif

// Packs the rows of a matrix (n, K) into panels.
static void pack(const float *w, int64_t n, int64_t K, float *panels) {
  for (int64_t first = 0; first < n; first += LANES, panels += K * LANES, w += K * LANES) {
    const int count = std::min<int64_t>(LANES, n - first);
    int64_t k = 0;
#if defined(__AVX2__)
    for (; count == LANES && k + 8 <= K; k += 8)
      for (int row = 0; row < LANES; row += 8)
        transpose(w + row * K + k, K, panels + k * LANES + row);
#endif
    for (; k < K; k++)
      for (int row = 0; row < LANES; row++)
        panels[k * LANES + row] = row < count ? w[row * K + k] : 0;
  }
}

// Rounds a row to codes: its largest number becomes 127. Returns the value of code 1.
static float quantize_row(const float *w, int64_t K, int8_t *codes) {
  float top = 0;
  for (int64_t k = 0; k < K; k++) {
    const float size = std::fabs(w[k]);
    top = size > top ? size : top;
  }
  const float inverse = top > 0 ? 127 / top : 0;
  for (int64_t k = 0; k < K; k++) codes[k] = (int8_t)(int)__builtin_rintf(w[k] * inverse);
  return top / 127;
}

// Like `pack`, in 8 bits, with a scale for each row. K is padded to an even number with a code of 0.
static void pack(const float *w, int64_t n, int64_t K, int8_t *panels, float *scales) {
  const int64_t padded = round_up(K, 2);
  std::vector<int8_t> codes(LANES * padded);
  for (int64_t first = 0; first < n; first += LANES, scales += LANES) {
    if (n - first < LANES) {
      std::fill(codes.begin(), codes.end(), 0);
      std::fill(scales, scales + LANES, 0.0f);
    }
    for (int row = 0; row < std::min<int64_t>(LANES, n - first); row++)
      scales[row] = quantize_row(w + (first + row) * K, K, &codes[row * padded]);
    for (int64_t k = 0; k < padded; k += 2, panels += 2 * LANES)
      for (int row = 0; row < LANES; row++)
        std::memcpy(panels + 2 * row, &codes[row * padded + k], 2);
  }
}

// ---------------------------------------------------------------- norms, rotation, activations

// LayerNorm or RMSNorm of n numbers. weight and bias may be null, and `out` may be x.
ONE_COPY void norm_row(const float *x, int64_t n, Norm kind, const float *weight,
                       const float *bias, float eps, float *out) {
  const int64_t whole = n / LANES * LANES;
  float mean = 0;
  if (kind == Norm::LAYER) {
    vec sums = {};
    for (int64_t i = 0; i < whole; i += LANES) sums += load(x + i);
    mean = total(sums);
    for (int64_t i = whole; i < n; i++) mean += x[i];
    mean /= n;
  }
  vec squares = {};
  for (int64_t i = 0; i < whole; i += LANES) {
    const vec apart = load(x + i) - mean;
    squares = multiply_add(apart, apart, squares);
  }
  float variance = total(squares);
  for (int64_t i = whole; i < n; i++) variance += (x[i] - mean) * (x[i] - mean);
  const float scale = 1 / std::sqrt(variance / n + eps);
  int64_t i = 0;
  for (; i < whole; i += LANES) {
    vec y = (load(x + i) - mean) * scale;
    if (weight) y *= load(weight + i);
    if (bias) y += load(bias + i);
    store(out + i, y);
  }
  for (; i < n; i++) {
    float y = (x[i] - mean) * scale;
    if (weight) y *= weight[i];
    if (bias) y += bias[i];
    out[i] = y;
  }
}

// Rotates a query or a key by a row of cos, cos, -sin, sin, each half a head wide.
ONE_COPY void rotate_row(float *x, int64_t head_size, const float *factors) {
  const int64_t half = head_size / 2;
  const float *cos = factors;
  const float *sin = factors + head_size + half;
  int64_t d = 0;
  for (; d + LANES <= half; d += LANES) {
    const vec a = load(x + d);
    const vec b = load(x + d + half);
    store(x + d, a * load(cos + d) - b * load(sin + d));
    store(x + d + half, b * load(cos + d) + a * load(sin + d));
  }
  for (; d < half; d++) {
    const float a = x[d];
    const float b = x[d + half];
    x[d] = a * cos[d] - b * sin[d];
    x[d + half] = b * cos[d] + a * sin[d];
  }
}

INLINE vec sigmoid(vec x) {
  const vec e = exponential(x > vec{} ? -x : x);  // of a number of at most 0: cannot overflow
  return (x > vec{} ? all(1) : e) / (1 + e);
}

// Near 0 it uses a short series, because 1 - e^-2x would lose precision there: two bits at 0.15,
// where the first term that the series leaves out is 6e-9 of the result, below float32's rounding.
constexpr float SHORT_SERIES = 0.15f;
INLINE vec hyperbolic_tangent(vec x) {
  const vec size = x > vec{} ? x : -x;
  const vec e = exponential(-2 * size);
  const vec far = (1 - e) / (1 + e);
  const vec square = x * x;
  const vec near = size * (1 + square * (-0.33333333f + square * (0.13333333f - square * 0.05396825f)));
  const vec y = size < all(SHORT_SERIES) ? near : far;
  return x > vec{} ? y : -y;
}

// The error function to about 2e-7 (Abramowitz and Stegun, 7.1.26).
INLINE vec error_function(vec x) {
  const vec size = x > vec{} ? x : -x;
  const vec t = 1 / (1 + 0.3275911f * size);
  vec p = 1.061405429f * t - 1.453152027f;
  p = p * t + 1.421413741f;
  p = p * t - 0.284496736f;
  p = p * t + 0.254829592f;
  const vec y = 1 - p * t * exponential(-size * size);
  return x > vec{} ? y : -y;
}

INLINE vec activate(vec x, Activation kind) {
  const vec positive = larger(x, vec{});
  switch (kind) {
    case Activation::RELU:
      return positive;
    case Activation::RELU2:
      return positive * positive;
    case Activation::GELU:
      return 0.5f * x * (1 + error_function(x * 0.70710678f));
    case Activation::GELU_TANH:  // (1 + tanh u) / 2 is the sigmoid of 2 u
      return x * sigmoid(1.59576912f * (x + 0.044715f * x * x * x));
    case Activation::SILU:
      return x * sigmoid(x);
  }
  return x;
}

// h (n, padded) = activation(h + bias); with gates, activation(gate + …) · (up + …), where the up
// part begins `padded` numbers after the gates, and likewise its bias.
ONE_COPY void activate_row(float *h, int64_t padded, Activation kind, const float *bias,
                           bool gated) {
  for (int64_t i = 0; i < padded; i += LANES) {
    vec x = load(h + i);
    if (bias) x += load(bias + i);
    x = activate(x, kind);
    if (gated) {
      vec up = load(h + padded + i);
      if (bias) up += load(bias + padded + i);
      x *= up;
    }
    store(h + i, x);
  }
}

// ---------------------------------------------------------------- attention

// The keys and values of one head of one sequence. Positions are stored in blocks of block_len,
// which the table locates. A block's keys are panels of LANES positions, (panels, head_size, LANES),
// and its values are rows, (panels · LANES, value_size). If block_len is not a multiple of LANES,
// the last panel of a block has unused slots.
struct HeadCache {
  float *keys;
  float *values;
  const int64_t *table;
  int64_t key_stride;  // floats from one block to the next
  int64_t value_stride;
  int64_t block_len;
  int64_t head_size;
  int64_t value_size;  // head_size, rounded up to whole registers

  int64_t panels_per_block() const { return round_up(block_len, LANES) / LANES; }

  // The panel that holds a position.
  int64_t panel_of(int64_t pos) const {
    return pos / block_len * panels_per_block() + pos % block_len / LANES;
  }

  void put(int64_t pos, const float *key, const float *value) const {
    const int64_t block = table[pos / block_len];
    const int64_t slot = pos % block_len;
    float *k = keys + block * key_stride + slot / LANES * head_size * LANES + slot % LANES;
    float *v = values + block * value_stride + slot * value_size;
    for (int64_t d = 0; d < head_size; d++) k[d * LANES] = key[d];
    for (int64_t d = 0; d < head_size; d++) v[d] = value[d];
    for (int64_t d = head_size; d < value_size; d++) v[d] = 0;
  }
};

constexpr int TILE = 128 / LANES;  // panels of keys read at a time: 128 positions
constexpr int QUERIES = 48;        // rows of queries that share a tile: a multiple of MOST_ROWS
constexpr int MOST_SPLIT = 4;      // partial sums of a value, added at the end

// Rows whose values are added at the same time, if each row has SPLIT sums for a register of a value.
// With 16 registers, six sums for each of two registers of a value fill 15, with their operands. With
// 32 there is room for all rows with all partial sums, 24, for one register of a value.
constexpr int VALUE_SUMS = REGISTERS == 16 ? 6 : MOST_ROWS * MOST_SPLIT;
template <int SPLIT>
constexpr int VALUE_ROWS = std::min(MOST_ROWS, VALUE_SUMS / SPLIT);

// Factors that leave a row as it is.
constexpr float ONES[] = {1, 1, 1, 1, 1, 1};
static_assert(sizeof ONES / sizeof ONES[0] == MOST_ROWS);

// The score of a key that a query does not see. Not -inf, because -ffinite-math-only lets the compiler
// assume that there is none; far below any score, and so is a tenth of it.
constexpr float HIDDEN = -1e30f;

// One panel of a tile: LANES positions from `first` on, of which `count` are in use.
struct KeyPanel {
  const float *keys;
  const float *values;
  int64_t first;
  int count;
};

// The positions that a query sees: the first `sinks`, and `from` … `last`.
struct Sight {
  int64_t last;
  int64_t from;
  int64_t sinks;
  bool all_of(const KeyPanel &p) const {
    const int64_t end = p.first + LANES - 1;
    return p.count == LANES && end <= last && (p.first >= from || end < sinks);
  }
};

// A mask of the lanes of a panel that a query sees: -1 if seen, else 0.
INLINE ints seen_lanes(const Sight &sight, const KeyPanel &p) {
  ints lane;
  for (int i = 0; i < LANES; i++) lane[i] = i;
  auto inside = [&](int64_t pos) {  // the lane of a position, clamped to just outside the panel
    return (int32_t)std::max<int64_t>(-1, std::min<int64_t>(LANES, pos - p.first));
  };
  const int32_t end = std::min(p.count, inside(sight.last) + 1);
  return (lane < end) & ((lane >= inside(sight.from)) | (lane < inside(sight.sinks)));
}

// scores (R, …) of R queries with P panels.
template <int R, int P>
INLINE void score(const float *q, int64_t head_size, const KeyPanel *panels, float *scores) {
  const float *keys[P];
  UNROLL for (int p = 0; p < P; p++) keys[p] = panels[p].keys;
  vec sums[R][P] = {};
  for (int64_t d = 0; d < head_size; d++)
    outer<R, P>([&](int r) { return all(q[r * head_size + d]); },
                [&](int p) { return load(keys[p] + d * LANES); },
                [&](int r, int p, vec a, vec b) { sums[r][p] = multiply_add(a, b, sums[r][p]); });
  UNROLL for (int r = 0; r < R; r++)
    UNROLL for (int p = 0; p < P; p++)
      store(scores + r * TILE * LANES + p * LANES, sums[r][p]);
}

// out = factors · out + shares times values, for R queries, over n panels and P registers of every
// value. Position i is added to sum i % SPLIT of (rows, SPLIT, value_size), so that fewer operations
// depend on each other. Reads COUNT positions of a panel, or `count` if COUNT is 0.
template <int R, int P, int SPLIT, int COUNT>
INLINE void gather(const float *shares, const KeyPanel *panels, int n, int count,
                   int64_t value_size, int64_t column, const float *factors, float *out) {
  const int64_t stride = SPLIT * value_size;
  out += column;
  vec sums[SPLIT][R][P];
  for (int s = 0; s < SPLIT; s++)
    for (int r = 0; r < R; r++)
      for (int p = 0; p < P; p++)
        sums[s][r][p] = load(out + r * stride + s * value_size + p * LANES) * factors[r];
  for (int j = 0; j < n; j++) {
    const float *v = panels[j].values + column;
    const float *share = shares + j * LANES;
    auto position = [&](int i, vec(&sum)[R][P]) __attribute__((always_inline)) {
      outer<R, P>([&](int r) { return all(share[r * TILE * LANES + i]); },
                  [&](int p) { return load(v + i * value_size + p * LANES); },
                  [&](int r, int p, vec a, vec b) { sum[r][p] = multiply_add(a, b, sum[r][p]); });
    };
    if constexpr (COUNT > 0) {
      for (int i = 0; i < COUNT; i += SPLIT)
        UNROLL for (int s = 0; s < SPLIT; s++) position(i + s, sums[s]);
    } else {
      int i = 0;
      for (; i + SPLIT <= count; i += SPLIT)
        UNROLL for (int s = 0; s < SPLIT; s++) position(i + s, sums[s]);
      UNROLL for (int s = 0; s < SPLIT; s++)
        if (i + s < count) position(i + s, sums[s]);
    }
  }
  for (int s = 0; s < SPLIT; s++)
    for (int r = 0; r < R; r++)
      for (int p = 0; p < P; p++)
        store(out + r * stride + s * value_size + p * LANES, sums[s][r][p]);
}

// The buffers of attention, QUERIES rows each.
struct AttentionWork {
  Floats queries;         // (rows, head_size), divided by √head_size
  Floats scores;          // (rows, TILE · LANES)
  Floats out;             // (rows, MOST_SPLIT, value_size)
  Sight sights[QUERIES];       // ordered by position
  float tops[QUERIES];         // the largest score so far
  float factors[QUERIES];
  vec sums[QUERIES];
  int64_t ends[QUERIES];   // number of panels up to and including the query's own
  int64_t whole[QUERIES];  // how many of them it sees to their end
};

// Online softmax of one row over a tile, continuing from the tiles before it (Milakov and Gimelshein
// 2018, arXiv 1805.02867): scores become e^(score - top), and the factor rescales earlier sums.
ONE_COPY void soften(float *scores, const KeyPanel *panels, int n, const Sight &sight, float &top,
                     float &factor, vec &sum) {
  vec tops = all(top);
  uint32_t hides = 0;  // bit j: part of panel j is masked
  for (int j = 0; j < n; j++) {
    vec x = load(scores + j * LANES);
    if (!sight.all_of(panels[j])) {
      hides |= 1u << j;
      x = seen_lanes(sight, panels[j]) ? x : all(HIDDEN);
      store(scores + j * LANES, x);
    }
    tops = larger(x, tops);
  }
  const float before = top;
  top = highest(tops);
  factor = exponential(all(before - top))[0];
  sum *= factor;
  for (int j = 0; j < n; j++) {
    const vec x = load(scores + j * LANES);
    vec e = exponential(x - top);
    // Not e^(HIDDEN - top): the top is HIDDEN too, if nothing is seen so far.
    if (hides >> j & 1) e = x < all(HIDDEN / 10) ? vec{} : e;
    store(scores + j * LANES, e);
    sum += e;
  }
}

// A tile: a few adjacent panels of a text, and the queries that see any of them.
struct Tile {
  int64_t begin;       // its first panel, counted from the start of the text
  int count;           // number of panels
  int64_t start, end;  // the queries start … end - 1
  KeyPanel panels[TILE];

  // How many of this tile's panels come before a panel of the text; negative if the tile does not
  // begin before it.
  int before(int64_t panel) const { return std::min<int64_t>(count, panel - begin); }
};

// Prepares n queries, which have seen nothing yet.
template <int SPLIT>
static void begin_queries(const HeadCache &cache, int64_t n, AttentionWork &work) {
  for (int64_t r = 0; r < n; r++) {
    work.tops[r] = HIDDEN;
    work.sums[r] = vec{};
    work.ends[r] = cache.panel_of(work.sights[r].last) + 1;
    const int64_t slot = work.sights[r].last % cache.block_len;
    const bool sees_end = slot % LANES == LANES - 1 || slot == cache.block_len - 1;
    work.whole[r] = work.ends[r] - !sees_end;
  }
  std::fill_n(work.out.data(), n * SPLIT * cache.value_size, 0.0f);
}

// Finds the queries among n that see any key of a tile. Queries are ordered by position: those before
// the tile come first, and those whose window has left it behind come last.
static void find_queries(const HeadCache &cache, int64_t n, const AttentionWork &work, Tile &tile) {
  const int64_t per_block = cache.panels_per_block();
  auto first_of = [&](int64_t panel) {  // the position of a panel's first key
    return panel / per_block * cache.block_len + panel % per_block * LANES;
  };
  const int64_t first = first_of(tile.begin);
  const int64_t last = first_of(tile.begin + tile.count - 1) + LANES - 1;
  tile.start = 0;
  while (work.sights[tile.start].last < first) tile.start++;
  tile.end = n;
  auto left = [&](const Sight &s) { return s.from > last && s.sinks <= first; };
  while (tile.end > tile.start && left(work.sights[tile.end - 1])) tile.end--;
}

// Finds a tile's keys and values in memory: adjacent panels may be in blocks that are not.
static void find_panels(const HeadCache &cache, Tile &tile) {
  const int64_t per_block = cache.panels_per_block();
  int64_t block = tile.begin / per_block;
  int64_t inside = tile.begin % per_block;  // panels of this block before the next one
  for (int j = 0; j < tile.count; j++) {
    const int64_t at = cache.table[block];
    KeyPanel &panel = tile.panels[j];
    panel.keys = cache.keys + at * cache.key_stride + inside * cache.head_size * LANES;
    panel.values = cache.values + at * cache.value_stride + inside * LANES * cache.value_size;
    panel.first = block * cache.block_len + inside * LANES;
    panel.count = std::min<int64_t>(LANES, cache.block_len - inside * LANES);
    if (++inside == per_block) {
      inside = 0;
      block++;
    }
  }
}

// Writes the scores of a tile's queries. All queries are multiplied by a few panels before the next
// ones, so that these panels stay in L1.
static void score_tile(const Tile &tile, int64_t head_size, AttentionWork &work) {
  // 1. As many panels at a time as fit in registers with the rows, and equally many each time.
  const int widest = std::min<int64_t>(MOST_ROWS, tile.end - tile.start);
  int limit = 1;
  with_number<MOST_ROWS>(widest, [&](auto R) { limit = most_panels(R, 1); });
  const int strips = (tile.count + limit - 1) / limit;
  const int width = (tile.count + strips - 1) / strips;
  for (int j = 0; j < tile.count; j += width)
    for (int64_t r = tile.start; r < tile.end; r += MOST_ROWS) {
      const int rows = std::min<int64_t>(MOST_ROWS, tile.end - r);
      // 2. The last of these rows sees furthest. What is past it needs no score.
      const int some = std::min(width, tile.before(work.ends[r + rows - 1]) - j);
      if (some <= 0) continue;
      const float *q = work.queries.data() + r * head_size;
      float *to = work.scores.data() + (r * TILE + j) * LANES;
      with_number<MOST_ROWS>(rows, [&](auto R) {
        with_number<most_panels(R, 1)>(some, [&](auto P) {
          score<R, P>(q, head_size, tile.panels + j, to);
        });
      });
    }
}

// Turns the scores of a tile into softmax weights ("shares").
static void soften_tile(const Tile &tile, AttentionWork &work) {
  for (int64_t r = tile.start; r < tile.end; r++)
    soften(work.scores.data() + r * TILE * LANES, tile.panels, tile.before(work.ends[r]),
           work.sights[r], work.tops[r], work.factors[r], work.sums[r]);
}

// Adds the values of n adjacent panels, times their shares, to the sums of `rows` queries from r on.
// Reads COUNT positions of each panel, or `positions` if COUNT is 0. `shares` is where row 0 has the
// share of the first of these positions; `factors` rescale what the rows have added before.
template <int SPLIT, int COUNT>
static void add_values(const KeyPanel *panels, int n, int positions, const float *shares, int64_t r,
                       int rows, int64_t value_size, const float *factors, float *out) {
  const int64_t columns = value_size / LANES;
  shares += r * TILE * LANES;
  out += r * SPLIT * value_size;
  with_number<VALUE_ROWS<SPLIT>>(rows, [&](auto R) {
    constexpr int MOST = most_panels(R * SPLIT, 1);
    for (int64_t column = 0; column < columns; column += MOST)
      with_number<MOST>(std::min<int64_t>(MOST, columns - column), [&](auto P) {
        gather<R, P, SPLIT, COUNT>(shares, panels, n, positions, value_size, column * LANES, factors,
                                   out);
      });
  });
}

// Adds a tile's values to the sums of `rows` queries from r on. Each query gets the values up to its
// own position, in the same order as if it were alone.
template <int SPLIT>
static void add_tile_values(const Tile &tile, int64_t value_size, int64_t r, int rows,
                            AttentionWork &work) {
  const KeyPanel *panels = tile.panels;
  const float *shares = work.scores.data();
  float *out = work.out.data();
  // 1. All rows together, as far as the first of them sees: first whole panels …
  const int shared = std::max(0, tile.before(work.whole[r]));
  add_values<SPLIT, LANES>(panels, shared, LANES, shares, r, rows, value_size, work.factors + r,
                           out);
  // 2. … then the first positions of the next panel. A multiple of SPLIT, so that the positions after
  //    them are added to the same sums as in a whole panel.
  int begun = 0;
  if (tile.before(work.ends[r]) > shared)
    begun = (work.sights[r].last - panels[shared].first + 1) / SPLIT * SPLIT;
  if (begun)
    add_values<SPLIT, 0>(panels + shared, 1, begun, shares + shared * LANES, r, rows, value_size,
                         ONES, out);
  // 3. The rest separately for each position: the heads of a group are rows at the same one.
  int run;
  for (int64_t i = r; i < r + rows; i += run) {
    const int64_t last = work.sights[i].last;
    for (run = 1; i + run < r + rows && work.sights[i + run].last == last; run++) {}
    auto add = [&](const KeyPanel *from, int share, int n, int positions) {
      if (n * positions > 0)
        add_values<SPLIT, 0>(from, n, positions, shares + share, i, run, value_size, ONES, out);
    };
    const int whole = std::max(0, tile.before(work.whole[i]));
    const int ends = tile.before(work.ends[i]);
    int next = shared;
    // 4. What is left of the panel that was begun …
    if (begun) {
      KeyPanel rest = panels[next];
      rest.values += begun * value_size;
      const int seen = whole > next ? LANES : last - rest.first + 1;
      add(&rest, next * LANES + begun, 1, seen - begun);
      next++;
    }
    // 5. … the whole panels after it, and of the last one the positions up to the query's own.
    add(panels + next, next * LANES, whole - next, LANES);
    if (ends > std::max(whole, next))
      add(panels + whole, whole * LANES, 1, last - panels[whole].first + 1);
  }
}

// Adds up the partial sums of n queries, and divides them by the sums of their shares.
template <int SPLIT>
static void end_queries(int64_t n, int64_t value_size, AttentionWork &work) {
  for (int64_t r = 0; r < n; r++) {
    const float inverse = 1 / total(work.sums[r]);
    float *out = work.out.data() + r * SPLIT * value_size;
    for (int64_t i = 0; i < value_size; i += LANES) {
      vec sum = load(out + i);
      for (int s = 1; s < SPLIT; s++) sum += load(out + s * value_size + i);
      store(out + i, sum * inverse);
    }
  }
}

// softmax(q kᵀ / √head_size) v of n queries, tile by tile (Dao et al. 2022, arXiv 2205.14135).
// Writes the result to the first value_size numbers of each row of work.out. Reads no values past a
// query's position, where an earlier sequence may have left anything.
template <int SPLIT>
static void attend_tiles(const HeadCache &cache, int64_t n, AttentionWork &work) {
  begin_queries<SPLIT>(cache, n, work);
  const int64_t panels = work.ends[n - 1];
  Tile tile;
  for (tile.begin = 0; tile.begin < panels; tile.begin += TILE) {
    // 1. Which keys, and which queries see any of them? With a window, often none.
    tile.count = std::min<int64_t>(TILE, panels - tile.begin);
    find_queries(cache, n, work, tile);
    if (tile.start == tile.end) continue;
    find_panels(cache, tile);
    // 2. How well does each query match each key?
    score_tile(tile, cache.head_size, work);
    // 3. Scores become weights, which continue the softmax of the tiles before.
    soften_tile(tile, work);
    // 4. The weighted sum of the values, for as many rows at a time as fit in registers.
    for (int64_t r = tile.start; r < tile.end; r += VALUE_ROWS<SPLIT>) {
      const int rows = std::min<int64_t>(VALUE_ROWS<SPLIT>, tile.end - r);
      add_tile_values<SPLIT>(tile, cache.value_size, r, rows, work);
    }
  }
  end_queries<SPLIT>(n, cache.value_size, work);
}

// A multiply-add takes about four cycles and two can begin in each, so about eight independent sums
// keep a processor busy. A single query has one for each register of a value. If that is fewer than
// ENOUGH, its positions are split over several sums: over four if the value fills at most FEW_COLUMNS
// registers. With 16 registers four sums would leave room for a single row, so there are two.
constexpr int64_t ENOUGH = 6;
constexpr int64_t FEW_COLUMNS = 2;

// Attention of n queries. Returns the row stride of work.out.
static int64_t attend(const HeadCache &cache, int64_t n, AttentionWork &work) {
  const int64_t columns = cache.value_size / LANES;
  if (columns >= ENOUGH) {
    attend_tiles<1>(cache, n, work);
    return cache.value_size;
  }
  if (columns > FEW_COLUMNS || REGISTERS == 16) {
    attend_tiles<2>(cache, n, work);
    return 2 * cache.value_size;
  }
  attend_tiles<MOST_SPLIT>(cache, n, work);
  return MOST_SPLIT * cache.value_size;
}

// ---------------------------------------------------------------- sampling

struct SamplingWork {
  std::vector<float> allowed;  // logits, with those of excluded tokens masked
  std::vector<float> probs;
  std::vector<float> ordered;
  std::vector<int64_t> order;
};

// Zeroes all but the fewest most likely tokens that add up to top_p; among ties, keeps the first.
static void keep_top_p(float *p, int64_t n, float top_p, SamplingWork &work) {
  float sum = 0;
  for (int64_t i = 0; i < n; i++) sum += p[i];
  work.order.resize(n);
  for (int64_t i = 0; i < n; i++) work.order[i] = i;
  auto likelier = [&](int64_t a, int64_t b) { return p[a] > p[b] || (p[a] == p[b] && a < b); };
  // Few tokens are usually enough, so do not sort all of them: 256, then four times as many, …
  float before = 0;
  int64_t done = 0;
  for (int64_t sorted = 256; done < n && before < top_p; sorted *= 4) {
    const int64_t end = std::min(n, sorted);
    std::partial_sort(work.order.begin() + done, work.order.begin() + end, work.order.end(),
                      likelier);
    for (; done < end && before < top_p; done++) before += p[work.order[done]] / sum;
  }
  for (int64_t i = done; i < n; i++) p[work.order[i]] = 0;
}

// argmax(softmax(logits / temperature) / noise) over the tokens that top_k and top_p keep, as in
// sampling.py. Without noise: argmax(logits). top_k 0 keeps all.
ONE_COPY int64_t sample(const float *logits, int64_t n, const float *noise, float temperature,
                        int64_t top_k, float top_p, SamplingWork &work) {
  if (!noise) return std::max_element(logits, logits + n) - logits;
  const int64_t padded = round_up(n, LANES);
  work.probs.resize(padded);
  float *p = work.probs.data();
  float top = logits[0];
  for (int64_t i = 1; i < n; i++) top = logits[i] > top ? logits[i] : top;
  for (int64_t i = 0; i < n; i++) p[i] = (logits[i] - top) / temperature;
  for (int64_t i = n; i < padded; i++) p[i] = 0;
  for (int64_t i = 0; i < padded; i += LANES) {
    // Below its range `exponential` gives e^-87, which the smallest noise would make a winner: a
    // token that the model rules out, with a logit of -inf, has a probability of exactly 0.
    const vec x = load(p + i);
    store(p + i, x < all(-87.0f) ? vec{} : exponential(x));
  }
  float sum = 0;
  for (int64_t i = 0; i < n; i++) sum += p[i];
  for (int64_t i = 0; i < n; i++) p[i] /= sum;
  if (top_k && top_k < n) {
    work.ordered.assign(p, p + n);
    auto weakest = work.ordered.begin() + top_k - 1;
    std::nth_element(work.ordered.begin(), weakest, work.ordered.end(), std::greater<float>());
    for (int64_t i = 0; i < n; i++)
      if (p[i] < *weakest) p[i] = 0;
  }
  if (top_p < 1) keep_top_p(p, n, top_p, work);
  float best = 0;
  for (int64_t i = 0; i < n; i++) {
    p[i] /= noise[i];
    best = p[i] > best ? p[i] : best;
  }
  return std::min<int64_t>(std::find(p, p + n, best) - p, n - 1);  // n - 1 if all are NaN
}
