// The whole decode loop without Python: only arithmetic and memory are left.
//
// native.py compiles this file on first use, for one shape: C width, H heads, V vocabulary,
// BITS 32 or 8 for a weight, INT8_INPUTS 1 where the vectors are rounded too, L2 the bytes of that cache.
// RMS_NORM, ROPE, QK_NORM, RELU2 and BIAS are 1 where the config has them.
// It copies no weight: the pointers are the model's own tensors, so they are never out of date. (With 8
// bits they are codes, which quantize() makes for each generation.)
//
// Three things make it fast. A matrix is read once, front to back, several rows at a time, for all
// texts of the batch. Keys lie in tiles of LANES positions, so that a vector register holds one
// number of LANES neighbouring positions. And everything is inlined into one loop.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <vector>
#if defined(__AVX__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
constexpr int LANES = 16;
#elif defined(__AVX__)
constexpr int LANES = 8;
#else
constexpr int LANES = 4;
#endif
constexpr int HS = C / H;  // head size
constexpr int CHUNK = 16;  // positions of a prompt in one pass of the weights
// Whether one block's weights are more than the L2 cache holds. Then the rows to come are prefetched.
constexpr bool STREAMED = 12LL * C * C * BITS / 8 > L2;

#define INLINE static inline __attribute__((always_inline))

// GCC's and Clang's vectors: LANES floats in one register, with + and * as for one float.
typedef float vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t ints __attribute__((vector_size(4 * LANES)));
typedef int8_t bytes __attribute__((vector_size(LANES), aligned(1), may_alias));

#if BITS == 8
typedef int8_t weight;
#else
typedef float weight;
#endif

template <class T = vec>  // a register, a half of one, or one number
INLINE T load(const float *p) {
  T v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
template <class T>
INLINE void store(float *p, T v) { std::memcpy(p, &v, sizeof v); }
static inline vec load(const int8_t *p) {
#if defined(__AVX512F__)  // GCC's own conversion from bytes goes one by one
  return (vec)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)));
#elif defined(__AVX2__)
  return (vec)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)));
#else
  return __builtin_convertvector(*(const bytes *)p, vec);
#endif
}

// All lanes as one number: halves onto halves, so that few operations wait for one another.
template <class Lanes, class Join>
INLINE float fold(Lanes v, Join join) {
  typedef float half __attribute__((vector_size(sizeof v / 2)));
  if constexpr (sizeof v == 16) return join(join(v[0], v[2]), join(v[1], v[3]));
  else {
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

// Lane i of the result is the total of v[i]: neighbours are added, two registers into one, until one is left.
template <int N, class Join>
INLINE void halve(vec (&v)[LANES], Join join) {
#pragma GCC unroll 8
  for (int i = 0; i < N; i++) v[i] = (vec)join(v[2 * i], v[2 * i + 1]);
}
INLINE vec totals(vec (&v)[LANES]) {
#if defined(__AVX512F__)
  auto near = [](__m512 a, __m512 b) { return _mm512_shuffle_ps(a, b, 0x88) + _mm512_shuffle_ps(a, b, 0xdd); };
  auto far = [](__m512 a, __m512 b) { return _mm512_shuffle_f32x4(a, b, 0x88) + _mm512_shuffle_f32x4(a, b, 0xdd); };
  halve<8>(v, near), halve<4>(v, near), halve<2>(v, far), halve<1>(v, far);
#elif defined(__AVX__)
  auto far = [](__m256 a, __m256 b) { return _mm256_permute2f128_ps(a, b, 0x20) + _mm256_permute2f128_ps(a, b, 0x31); };
  halve<4>(v, _mm256_hadd_ps), halve<2>(v, _mm256_hadd_ps), halve<1>(v, far);
#else
  for (int i = 0; i < LANES; i++) v[0][i] = total(v[i]);
#endif
  return v[0];
}

// What the compiler must not know of a value: how it was computed.
#if defined(__x86_64__)
#define HIDE(v) asm volatile("" : "+x"(v))
#else
#define HIDE(v) asm volatile("" : "+w"(v))
#endif

// a · b + c in one rounding. An intrinsic, which no compiler may put in another order.
INLINE vec multiply_and_add(vec a, vec b, vec c) {
#if defined(__AVX512F__)
  return (vec)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
  return (vec)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
  c = a * b + c;
  HIDE(c);  // or the compiler could add up in another order for more rows
  return c;
#endif
}

// e^x for x <= 0, to about 1e-6: 2^n by writing n into the exponent's bits, times a short series
// for the rest.
static inline vec exponential(vec x) {
  const vec lowest = vec{} - 87.0f;  // 2^-126 is the smallest that this way of writing 2^n can give
  x = x < lowest ? lowest : x;
  ints n = __builtin_convertvector(x * 1.44269504f - 0.5f, ints);  // x / ln 2, to the nearest
  vec whole = __builtin_convertvector(n, vec);
  vec f = (x - whole * 0.693359375f) + whole * 2.12194440e-4f;  // ln 2 in two parts, the first one exact
  vec p = ((((1.9875691e-4f * f + 1.3981999e-3f) * f + 8.3334519e-3f) * f + 4.1665796e-2f) * f +
           1.6666665e-1f) * f + 5.0000001e-1f;
  ints power = (n + 127) << 23;
  return (p * f * f + f + 1.0f) * *(vec *)&power;
}

// ---------------------------------------------------------------- matrix times vectors

struct Matrix {  // (n, K), each row in one piece, as nn.Linear keeps it
  const weight *w;
  const float *scale;  // one for each row; with 32 bits there is none
};

// LANES / M rows of a matrix times M vectors, in registers: each weight is loaded once for M vectors.
// Meanwhile the S rows from `ahead` on are prefetched, in order, so that memory works while the registers do.
template <int K, int M, int S, class Take>
INLINE void rows(Matrix a, const float *x, int64_t m, int64_t o, int64_t ahead, Take take) {
  constexpr int R = LANES / M, whole = K / LANES * LANES, LINE = 64 / sizeof(weight);  // of the cache
  const weight *w = a.w + o * K;
  x += m * K;
  alignas(4 * LANES) vec sums[LANES] = {};  // Clang takes what `totals` gets for aligned
#pragma GCC unroll 4
  for (int k = 0; k < whole; k += LANES) {
    if (k % LINE == 0)
      for (int s = 0; s < S; s++) __builtin_prefetch(a.w + ahead * K + k * S + s * LINE, 0, 2);
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) {
      const vec row = load(w + r * K + k);
#pragma GCC unroll 4
      for (int i = 0; i < M; i++) sums[i * R + r] += row * load(x + i * K + k);
    }
  }
  for (int k = whole; k < K; k++)
    for (int r = 0; r < R; r++)
      for (int i = 0; i < M; i++) sums[i * R + r][0] += w[r * K + k] * x[i * K + k];
  typedef float part __attribute__((vector_size(4 * R)));
  part parts[M], scale;
  const vec all = totals(sums);
  std::memcpy(parts, &all, sizeof all);
  if (BITS == 8) std::memcpy(&scale, a.scale + o, sizeof scale);
  for (int i = 0; i < M; i++) take(m + i, o, BITS == 8 ? parts[i] * scale : parts[i]);
}

// One row times one vector: where a matrix ends between registers.
template <int K, class Take>
INLINE void row(Matrix a, const float *x, int64_t m, int64_t o, Take take) {
  float sum = 0;
  for (int k = 0; k < K; k++) sum += a.w[o * K + k] * x[m * K + k];
  take(m, o, BITS == 8 ? sum * a.scale[o] : sum);
}

#if INT8_INPUTS
// As below, with each vector rounded to 8 bits, so that integers are multiplied: 64 at once where the
// processor can. A vector's codes are 1 to 255, shifted by 128; quantize() stores what the shift adds to
// each row behind the scales.
template <int K, class Take>
static void linear(Matrix a, int64_t n, const float *x, int64_t count, Take take) {
  for (int64_t m = 0; m < count; m++, x += K) {
    uint8_t codes[K];
    float top = 1e-30f;
    for (int k = 0; k < K; k++) top = std::max(top, std::fabs(x[k]));
    const float up = 127 / top;
    for (int k = 0; k < K; k++) codes[k] = (uint8_t)(int)(x[k] * up + 128.5f);
    for (int64_t o = 0; o < n; o++) {
      const weight *w = a.w + o * K;
      int32_t sum = 0;
      for (int k = 0; k < K; k++) sum += w[k] * codes[k];
      take(m, o, ((float)sum * a.scale[o] - a.scale[n + o]) * (top / 127));
    }
  }
}
#else
// take(m, o, sums) gets rows o … of the matrix times vector m: a register or a half of one, or one number.
template <int K, class Take>
static void linear(Matrix a, int64_t n, const float *x, int64_t count, Take take) {
  const int64_t whole = n / LANES * LANES;
  if (count == 1)  // one text: the case that must stay the fastest
    for (int64_t o = 0; o < whole; o += LANES) rows<K, 1, STREAMED ? LANES : 0>(a, x, 0, o, o + LANES, take);
  for (int64_t first = 0; count > 1 && first < count; first += 64) {  // as many vectors as the L1 cache holds
    const int64_t last = std::min(count, first + 64), pairs = (last - first) / 2 * 2;
    for (int64_t o = 0; o < whole; o += LANES / 2) {
      int64_t ahead = o + LANES / 2;
      for (int64_t m = first; m < first + pairs; m += 2, ahead += 2)
        if (pairs == 2) rows<K, 2, LANES / 2>(a, x, m, o, ahead, take);
        else rows<K, 2, 2>(a, x, m, o, ahead, take);
      if (pairs < last - first && o % LANES) rows<K, 1, 0>(a, x, last - 1, o - LANES / 2, 0, take);
    }
  }
  for (int64_t o = whole; o < n; o++)
    for (int64_t m = 0; m < count; m++) row<K>(a, x, m, o, take);
}
#endif

// ---------------------------------------------------------------- the other parts of a block

// RMSNorm of N numbers, without weights; `out` may be x.
template <int N>
INLINE void rms_norm(const float *x, float *out) {
  float squares = 0;
  for (int i = 0; i < N; i++) squares += x[i] * x[i];
  const float scale = 1 / std::sqrt(squares / N + 1.1920929e-7f);
  for (int i = 0; i < N; i++) out[i] = x[i] * scale;
}

struct Norm {  // no weights with RMS_NORM
  const float *w, *b;
};

static void norm(const float *x, Norm n, float *out) {
  if constexpr (RMS_NORM) return rms_norm<C>(x, out);
  const auto [w, b] = n;
  float mean = 0, var = 0;
  for (int i = 0; i < C; i++) mean += x[i];
  mean /= C;
  for (int i = 0; i < C; i++) var += (x[i] - mean) * (x[i] - mean);
  float scale = 1 / std::sqrt(var / C + 1e-5f);
  for (int i = 0; i < C; i++) out[i] = (x[i] - mean) * scale * w[i] + b[i];
}

// QK-norm of a query or a key, and its rotation by a row of cos, cos, -sin and sin.
#define ONE_WAY static __attribute__((noinline))  // not inlined, so that every row meets the same instructions
ONE_WAY void place(float *x, const float *turn) {
  if constexpr (QK_NORM) rms_norm<HS>(x, x);
  if constexpr (ROPE) {
    constexpr int half = HS / 2;
    const float *cos = turn, *sin = turn + HS + half;
    for (int d = 0; d < half; d++) {
      const float a = x[d], b = x[d + half];
      x[d] = a * cos[d] - b * sin[d];
      x[d + half] = b * cos[d] + a * sin[d];
    }
  }
}

template <class T>
INLINE T biased(T sum, const float *b, int64_t o) {
  if constexpr (BIAS) sum += load<T>(b + o);
  return sum;
}

template <class T>
INLINE T relu(T x) {
  x = x > T{} ? x : T{};
  if constexpr (RELU2) x *= x;
  return x;
}

// One head of one text: keys in tiles (capacity / LANES, HS, LANES), values (capacity, HS).
struct HeadCache {
  float *k, *v;
  void put(int pos, const float *key, const float *value) {
    float *to = k + (size_t)(pos / LANES) * HS * LANES + pos % LANES;
    for (int d = 0; d < HS; d++) to[d * LANES] = key[d];
    std::memcpy(v + (size_t)pos * HS, value, sizeof(float) * HS);
  }
};

// The blocks of one head of one sequence, of which the first `used` are read: HeadCache's have LANES
// positions each and lie in a row, serving's lie anywhere.
struct Held {
  const float *keys, *values;
  const int64_t *table;
  size_t every;  // numbers from a block to the next
  int64_t used;
};

// The score of q with every key, in the slots of its block; -1e30 behind the last of the n positions.
// Returns the largest.
INLINE float scores_of(const float *q, const Held &held, int64_t n, int64_t len, int64_t padded, float *s) {
  const float scale = 1 / std::sqrt((float)HS);
  vec tops = vec{} - 1e30f;
  ints places;
  for (int i = 0; i < LANES; i++) places[i] = i;
  for (int64_t b = 0; b < held.used; b++) {
    const float *k = held.keys + held.table[b] * held.every;
    float *to = s + b * padded;
    for (int64_t t = 0; t < padded; t += LANES) {
      vec part[4] = {};
      int d = 0;
#pragma GCC unroll 8
      for (; d + 4 <= HS; d += 4)
#pragma GCC unroll 4
        for (int u = 0; u < 4; u++) part[u] = multiply_and_add(vec{} + q[d + u], load(k + (d + u) * padded + t), part[u]);
      for (; d < HS; d++) part[0] = multiply_and_add(vec{} + q[d], load(k + d * padded + t), part[0]);
      vec x = ((part[0] + part[1]) + (part[2] + part[3])) * scale;
      x = places + (int32_t)t < (int32_t)std::min(len, n - b * len) ? x : vec{} - 1e30f;  // not of this sequence
      store(to + t, x);
      tops = x > tops ? x : tops;
    }
  }
  return highest(tops);
}

// softmax(q kᵀ / √hs) v of one query over positions 0 … n - 1 of its sequence. Slots past the last position
// are never read: an earlier sequence may have left anything there.
ONE_WAY void attend(const float *q, const Held &held, int64_t n, int64_t len, int64_t padded, float *s,
                           float *out) {
  const float top = scores_of(q, held, n, len, padded, s);
  vec sums = {};
  for (int64_t t = 0; t < held.used * padded; t += LANES) {
    vec e = exponential(load(s + t) - top);
    store(s + t, e);
    sums += e;
  }
  constexpr int whole = HS / LANES;
  vec y[4][whole + 1] = {};
  float rest[HS] = {};
  for (int64_t b = 0; b < held.used; b++) {
    const float *v = held.values + held.table[b] * held.every, *p = s + b * padded;
    const int64_t last = std::min(len, n - b * len);
    int64_t t = 0;
    for (; t + 4 <= last; t += 4)  // four independent sums, so that none waits for another
#pragma GCC unroll 4
      for (int u = 0; u < 4; u++)
#pragma GCC unroll 8
        for (int d = 0; d < whole; d++)
          y[u][d] = multiply_and_add(vec{} + p[t + u], load(v + (t + u) * HS + d * LANES), y[u][d]);
    for (; t < last; t++)
#pragma GCC unroll 8
      for (int d = 0; d < whole; d++)
        y[0][d] = multiply_and_add(vec{} + p[t], load(v + t * HS + d * LANES), y[0][d]);
    if (HS > whole * LANES)
      for (t = 0; t < last; t++)
        for (int d = whole * LANES; d < HS; d++) rest[d] += p[t] * v[t * HS + d];
  }
  const float z = 1 / total(sums);
#pragma GCC unroll 8
  for (int d = 0; d < whole; d++) store(out + d * LANES, ((y[0][d] + y[1][d]) + (y[2][d] + y[3][d])) * z);
  for (int d = whole * LANES; d < HS; d++) out[d] = z * rest[d];
}

// argmax(softmax(logits / temperature) / noise) over the tokens that top_k and top_p keep,
// as in decoding/sampling.py.
static int64_t draw(const float *logits, const float *noise, float temperature, int top_k, float top_p) {
  if (!noise) return std::max_element(logits, logits + V) - logits;
  float p[V + LANES], top = logits[0], sum = 0;
  for (int i = 1; i < V; i++) top = logits[i] > top ? logits[i] : top;
  for (int i = 0; i < V; i++) p[i] = (logits[i] - top) / temperature;
  for (int i = V; i < V + LANES; i++) p[i] = 0;
  for (int i = 0; i < V; i += LANES) store(p + i, exponential(load(p + i)));
  for (int i = 0; i < V; i++) sum += p[i];
  for (int i = 0; i < V; i++) p[i] /= sum;
  if (top_k) {
    float order[V];
    std::copy(p, p + V, order);
    std::nth_element(order, order + top_k - 1, order + V, std::greater<float>());
    for (int i = 0; i < V; i++)
      if (p[i] < order[top_k - 1]) p[i] = 0;
  }
  if (top_p < 1) {
    int order[V];
    std::iota(order, order + V, 0);
    std::stable_sort(order, order + V, [&](int a, int b) { return p[a] > p[b]; });
    float all = 0, before = 0;
    for (int i = 0; i < V; i++) all += p[i];
    for (int i = 0; i < V; i++) {
      float share = p[order[i]] / all;
      if (before >= top_p) p[order[i]] = 0;
      before += share;
    }
  }
  float best = 0;
  for (int i = 0; i < V; i++) {
    p[i] /= noise[i];
    best = p[i] > best ? p[i] : best;
  }
  return std::min<int64_t>(std::find(p, p + V, best) - p, V - 1);  // V - 1: where nothing is a number
}

#ifndef NO_LOOP  // serving/native.cpp has a loop of its own
// ---------------------------------------------------------------- the loop

extern "C" struct Arguments {  // the same fields as in native.py
  const void *const *weights;  // as Native.weights returns them
  float *keys, *values;        // (layers, batch, H, capacity · HS) each
  int64_t *text;               // (batch, length): the first `known` tokens; more are written behind them
  const float *noise;          // (tokens, batch, V), or null for greedy sampling
  int64_t layers, batch, capacity, length, known;
  double temperature, top_p;
  int64_t top_k;  // 0: all
};

struct Floats {  // begins with a line of the cache, so that no register crosses one
  struct alignas(64) Line { float numbers[16]; };
  std::vector<Line> lines;
  explicit Floats(int64_t n) : lines(n / 16 + 1) {}
  operator float *() { return lines[0].numbers; }
};

// One pass of the weights over the tokens of all texts at T positions, and what it works in.
struct Pass {
  const Arguments *args;
  const void *const *layers;  // where the weights of the first block begin
  const float *wte, *wpe, *headb;  // wpe with ROPE: rotations
  Norm last;
  Matrix head;
  Floats x, u, qkv, y, h, logits, scores;
  std::vector<int64_t> table;  // a text's blocks of LANES positions lie one behind the other

  Pass(const Arguments *args, int64_t vectors, int64_t drawn)
      : args(args), x(vectors * C), u(vectors * C), qkv(vectors * 3 * C), y(vectors * C), h(vectors * 4 * C),
        logits(drawn * V), scores(args->capacity + LANES), table(args->capacity) {
    std::iota(table.begin(), table.end(), 0);
    layers = args->weights;
    wte = next(layers), wpe = next(layers), last = next_norm(layers);
    head = matrix(layers), headb = next_bias(layers);
  }

  static const float *next(const void *const *&w) { return (const float *)*w++; }
  static const float *next_bias(const void *const *&w) { return BIAS ? next(w) : nullptr; }
  static Norm next_norm(const void *const *&w) {
    if (RMS_NORM) return {};
    const float *weight = next(w), *bias = next(w);
    return {weight, bias};
  }
  static Matrix matrix(const void *const *&w) {
    const weight *rows = (const weight *)next(w);
    return Matrix{rows, BITS == 8 ? next(w) : nullptr};
  }

  // Reads the tokens at positions pos … pos + T - 1; x[b · T + t] is what comes out of the last block.
  void read(int64_t pos, int64_t T) {
    const int64_t B = args->batch, N = B * T;  // vectors: text b, place pos + t
    const void *const *at_weight = layers;
    for (int64_t r = 0; r < N; r++) {
      const int64_t b = r / T, t = pos + r % T;
      const float *a = wte + args->text[b * args->length + t] * C, *p = wpe + t * C;
      for (int i = 0; i < C; i++) x[r * C + i] = ROPE ? a[i] : a[i] + p[i];
      if (RMS_NORM) rms_norm<C>(&x[r * C], &x[r * C]);
    }
    for (int64_t layer = 0; layer < args->layers; layer++) {
      const Norm first = next_norm(at_weight);
      for (int64_t r = 0; r < N; r++) norm(&x[r * C], first, &u[r * C]);
      // all heads' queries, then keys, then values
      linear<C>(matrix(at_weight), 3 * C, u, N,
                [&](int64_t m, int64_t o, auto s) { store(&qkv[m * 3 * C + o], s); });
      for (int64_t r = 0; r < N; r++)
        for (int head_ = 0; head_ < H; head_++) {
          const size_t at = ((layer * B + r / T) * H + head_) * (size_t)(args->capacity * HS);
          float *q = &qkv[r * 3 * C + head_ * HS];
          HeadCache kv{args->keys + at, args->values + at};
          const int64_t t = pos + r % T;
          if (QK_NORM || ROPE) place(q, wpe + t * 2 * HS), place(q + C, wpe + t * 2 * HS);
          kv.put(t, q + C, q + 2 * C);
          attend(q, {kv.k, kv.v, table.data(), HS * LANES, t / LANES + 1}, t + 1, LANES, LANES, scores,
                 &y[r * C + head_ * HS]);
        }
      Matrix proj = matrix(at_weight);
      const float *b = next_bias(at_weight);
      auto add = [&](int64_t m, int64_t o, auto s) {
        store(&x[m * C + o], load<decltype(s)>(&x[m * C + o]) + biased(s, b, o));
      };
      linear<C>(proj, C, y, N, add);
      const Norm second = next_norm(at_weight);
      for (int64_t r = 0; r < N; r++) norm(&x[r * C], second, &u[r * C]);
      Matrix up = matrix(at_weight);
      b = next_bias(at_weight);
      linear<C>(up, 4 * C, u, N,
                [&](int64_t m, int64_t o, auto s) { store(&h[m * 4 * C + o], relu(biased(s, b, o))); });
      Matrix down = matrix(at_weight);
      b = next_bias(at_weight);
      linear<4 * C>(down, C, h, N, add);
    }
  }

  // take(b, t, token) gets the token behind position pos + t of text b, drawn with its own noise.
  template <class Take>
  void choose(int64_t pos, int64_t T, Take take) {
    const int64_t B = args->batch, N = B * T, first = args->known - 1;
    for (int64_t r = 0; r < N; r++) norm(&x[r * C], last, &u[r * C]);
    linear<C>(head, V, u, N, [&](int64_t m, int64_t o, auto s) { store(&logits[m * V + o], biased(s, headb, o)); });
    for (int64_t r = 0; r < N; r++) {
      const int64_t b = r / T, t = r % T;
      const float *noise = args->noise ? args->noise + ((pos + t - first) * B + b) * V : nullptr;
      take(b, t, draw(&logits[r * V], noise, args->temperature, args->top_k, args->top_p));
    }
  }
};

// Reads the tokens at positions `from` … `to` - 1 of every text; from the last known token on, each
// position's logits give the token at the next.
extern "C" void decode(const Arguments *args, int64_t from, int64_t to) {
  const int64_t B = args->batch, last = args->known - 1;
  const int64_t most = std::max<int64_t>(1, std::min({(int64_t)CHUNK, 64 / B, last - from}));
  Pass pass(args, B * most, B);
  for (int64_t pos = from, T; pos < to; pos += T) {
    T = pos < last ? std::min({most, last - pos, to - pos}) : 1;  // a chunk of the prompt, or one token
    pass.read(pos, T);
    if (pos < last) continue;  // inside the prompt the next token is known
    pass.choose(pos, 1, [&](int64_t b, int64_t, int64_t token) { args->text[b * args->length + pos + 1] = token; });
  }
}

// Reads the tokens at positions `from` … `to` - 1, known and proposed, in one pass; the token that
// belongs behind each goes to choices (batch, to - from), and the text stays as it is.
extern "C" void check(const Arguments *args, int64_t from, int64_t to, int64_t *choices) {
  const int64_t T = to - from;
  Pass pass(args, args->batch * T, args->batch * T);
  pass.read(from, T);
  pass.choose(from, T, [&](int64_t b, int64_t t, int64_t token) { choices[b * T + t] = token; });
}

#endif

// ---------------------------------------------------------------- 8-bit weights

// Each row's largest number becomes 127: codes (n, k), one scale for each row, and behind all scales what
// a shift of a vector's codes by 128 adds to each row.
extern "C" void quantize(const float *w, int64_t n, int64_t k, int8_t *codes, float *scales) {
  for (int64_t r = 0; r < n; r++, w += k, codes += k) {
    float top = 0;
    for (int64_t i = 0; i < k; i++) {
      float size = std::fabs(w[i]);
      top = size > top ? size : top;
    }
    scales[r] = top / 127;
    float inverse = top > 0 ? 127 / top : 0;
    for (int64_t i = 0; i < k; i++) codes[i] = (int8_t)(int)__builtin_rintf(w[i] * inverse);
    int32_t sum = 0;
    for (int64_t i = 0; i < k; i++) sum += codes[i];
    scales[n + r] = 128 * scales[r] * sum;
  }
}

// ---------------------------------------------------------------- the machine's limits

// Reads n floats `times` times, and returns their sum, so that the compiler cannot leave the reading out.
extern "C" float read_all(const float *p, int64_t n, int64_t times) {
  vec sums[8] = {};
  for (int64_t i = 0; i < times; i++) {
    for (int64_t j = 0; j + 8 * LANES <= n; j += 8 * LANES)
#pragma GCC unroll 8
      for (int u = 0; u < 8; u++) sums[u] += load(p + j + u * LANES);
    asm volatile("" ::: "memory");  // or the compiler would read only once
  }
  float sum = 0;
  for (int u = 0; u < 8; u++) sum += total(sums[u]);
  return sum;
}

// `times` rounds of 12 independent multiply-adds of a whole register, of which AVX has 16. Returns a round's operations.
extern "C" int64_t multiply_add(int64_t times, float *out) {
  vec sums[12] = {}, x = {}, y = {};
  x += 1.0000001f, y += 1e-9f;
  for (int u = 0; u < 12; u++) sums[u] += (float)u;  // all different, or the compiler would compute one
  for (int64_t i = 0; i < times; i++) {
#pragma GCC unroll 12
    for (int u = 0; u < 12; u++) sums[u] = sums[u] * x + y;
    HIDE(x);  // or the compiler would find a closed form
  }
  for (int u = 0; u < 12; u++) *out += total(sums[u]);
  return 12 * LANES * 2;
}
