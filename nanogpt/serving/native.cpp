// A step of many sequences: N tokens, each with its sequence and position, keys and values in blocks.
//
// Every row of a step gets the same bits alone, in any batch and in any chunk of its prompt. A sum
// runs over k from first to last in one lane of a register, however many rows share the weights, and
// attention goes over the blocks of one sequence, query by query. Only products of whole matrices are
// blocked: ROWS tokens and PANELS · LANES outputs at a time stay in registers.
//
// A matrix (n, K) lies in panels: LANES of its rows together, one number of each after the other,
// (panels, K, LANES), with zeros after the last row. Rows of numbers begin at multiples of LANES.

#define NO_LOOP
#include "../engines/native.cpp"

constexpr int64_t up_to_lanes(int64_t n) { return (n + LANES - 1) / LANES * LANES; }
constexpr int64_t CP = up_to_lanes(C), QP = up_to_lanes(3 * C), FP = up_to_lanes(4 * C), VP = up_to_lanes(V);
constexpr int64_t TP = up_to_lanes(2 * HS);  // of a row of rotations
constexpr int64_t DEPTH = 128;  // terms of a sum before it goes back to memory: the panels stay in the cache

#if defined(__AVX512F__)
constexpr int ROWS = 6, PANELS = 4, PANELS_ALONE = 8;
#else
constexpr int ROWS = 6, PANELS = 2, PANELS_ALONE = 8;
#endif

// `depth` more terms of the sums of R rows and P panels. x (R, …, stride), out (R, …, width). Meanwhile
// `depth` lines of F panels from `ahead` on come into the cache.
template <int R, int P, int F>
INLINE void block(const float *w, int64_t K, const float *x, int64_t stride, int64_t depth, bool first,
                  float *out, int64_t width, const float *ahead) {
  vec sums[R][P];
#pragma GCC unroll 8
  for (int r = 0; r < R; r++)
#pragma GCC unroll 8
    for (int p = 0; p < P; p++) sums[r][p] = first ? vec{} : load(out + r * width + p * LANES);
  for (int64_t k = 0; k < depth; k++) {
    vec row[P];
    for (int f = 0; f < F; f++) __builtin_prefetch(ahead + (f * K + k) * LANES, 0, 2);
#pragma GCC unroll 8
    for (int p = 0; p < P; p++) row[p] = load(w + (p * K + k) * LANES);
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
      const vec value = vec{} + x[r * stride + k];
#pragma GCC unroll 8
      for (int p = 0; p < P; p++) sums[r][p] = multiply_and_add(value, row[p], sums[r][p]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; r++)
#pragma GCC unroll 8
    for (int p = 0; p < P; p++) store(out + r * width + p * LANES, sums[r][p]);
}

// All rows of P panels at a time, from panel p on. While it works on these terms, each block of rows fetches
// F panels of the next.
template <int P, int F>
static void strips(int64_t &p, const float *matrix, int64_t K, const float *x, int64_t stride, int64_t N,
                   float *to, int64_t width) {
  for (; (p + P) * LANES <= width; p += P) {
    const float *w = matrix + p * K * LANES;
    float *out = to + p * LANES;
    for (int64_t k = 0; k < K; k += DEPTH) {
      const int64_t depth = std::min(DEPTH, K - k);
      const float *panel = w + k * LANES, *next = k + DEPTH < K ? panel + DEPTH * LANES : w + P * K * LANES;
      int64_t r = 0;
      auto rows = [&](auto R) {
        block<R.value, P, F>(panel, K, x + r * stride + k, stride, depth, !k, out + r * width, width, next);
        r += R.value, next += F * K * LANES;
      };
      while (r + ROWS <= N) rows(std::integral_constant<int, ROWS>{});
      if (N - r >= 4) rows(std::integral_constant<int, 4>{});
      if (N - r >= 2) rows(std::integral_constant<int, 2>{});
      if (r < N) rows(std::integral_constant<int, 1>{});
    }
  }
}

// out (N, width) = x (N, stride) times a matrix of `width` rows in panels.
static void product(const float *w, int64_t K, const float *x, int64_t stride, int64_t N, float *out,
                    int64_t width) {
  int64_t p = 0;
  if (N <= 2) strips<PANELS_ALONE, 1>(p, w, K, x, stride, N, out, width);
  if (ROWS < N && N < 4 * ROWS) strips<PANELS, 2>(p, w, K, x, stride, N, out, width);  // few blocks of rows
  strips<PANELS, 1>(p, w, K, x, stride, N, out, width);
  strips<1, 1>(p, w, K, x, stride, N, out, width);
}

// LayerNorm or RMSNorm of one row. Where C ends inside a register the rest of it counts for nothing.
ONE_WAY void norm_row(const float *x, Norm n, float *out) {
  const auto [w, b] = n;
  if constexpr (RMS_NORM) {
    vec all = {};
    for (int i = 0; i < CP; i += LANES) all = multiply_and_add(load(x + i), load(x + i), all);
    const float factor = 1 / std::sqrt(total(all) / C + 1.1920929e-7f);
    for (int i = 0; i < CP; i += LANES) store(out + i, load(x + i) * factor);
    return;
  }
  vec sums = {}, squares = {};
  for (int i = 0; i < CP; i += LANES) sums += load(x + i);  // zeros after the last number
  const float mean = total(sums) / C;
  for (int i = 0; i < CP; i += LANES) {
    vec apart = load(x + i) - mean;
    if (i + LANES > C)
      for (int lane = C - i; lane < LANES; lane++) apart[lane] = 0;
    squares = multiply_and_add(apart, apart, squares);
  }
  const float scale = 1 / std::sqrt(total(squares) / C + 1e-5f);
  for (int i = 0; i < CP; i += LANES) store(out + i, (load(x + i) - mean) * scale * load(w + i) + load(b + i));
}

extern "C" struct NativeSequence {  // the same fields as serving/native.py's
  int64_t *tokens;  // of the prompt, then what was drawn
  int64_t *block_table;
  const float *noise;  // (new tokens, V), or null for greedy sampling
  int64_t n_prompt, n_blocks, top_k;
  double temperature, top_p;
};

extern "C" struct Turn {  // what a sequence does in the next steps; NativeBackend.draw's facts
  NativeSequence *sequence;
  int64_t start, count, cached;  // it reads tokens start … start + count - 1; the first `cached` of all are held
  int64_t steps;  // then it decodes, until so many tokens are drawn; 0: only reads
  int64_t wanted;  // so many of the tokens that it reads first, the last ones, give logits
};

extern "C" struct NativeStep {  // the same fields as serving/native.py's
  const void *const *weights;
  float *keys, *values;  // (layers, blocks, H, HS, padded_len) and (layers, blocks, H, padded_len, HS)
  const int64_t *tokens, *sequences, *positions, *slot_mapping, *block_tables, *wanted;
  float *work, *logits;  // logits (W, VP)
  int64_t layers, blocks, block_len, padded_len;  // padded_len: block_len, up to whole registers
  int64_t N, longest, W;
};

// Head `head` of the sequence of row r, as far as the row sees.
INLINE Held held_by(const NativeStep *step, int64_t layer, int64_t r, int64_t head) {
  const size_t size = (size_t)HS * step->padded_len, every = H * size;  // of a head, and of a block
  const size_t base = (size_t)layer * step->blocks * every + head * size;
  const int64_t *table = step->block_tables + step->sequences[r] * step->longest;
  return {step->keys + base, step->values + base, table, every, step->positions[r] / step->block_len + 1};
}

// Keys and values of a row go to its slot.
static void keep(const NativeStep *step, int64_t layer, int64_t slot, const float *qkv) {
  const int64_t padded = step->padded_len, offset = slot % step->block_len;
  const size_t at = ((size_t)layer * step->blocks + slot / step->block_len) * H * HS * padded;
  for (int head = 0; head < H; head++) {
    float *k = step->keys + at + (size_t)head * HS * padded, *v = step->values + at + (size_t)head * HS * padded;
    for (int d = 0; d < HS; d++) k[d * padded + offset] = qkv[C + head * HS + d];
    std::memcpy(v + offset * HS, qkv + 2 * C + head * HS, sizeof(float) * HS);
  }
}

extern "C" int64_t lanes() { return LANES; }

// Floats of `work` for N rows of sequences of `longest` blocks.
extern "C" int64_t work_size(int64_t N, int64_t longest, int64_t padded) {
  return N * (3 * CP + QP + FP) + longest * padded;
}

// Stores the keys and values of a step, and writes the logits of its wanted rows.
static void read_step(const NativeStep *step) {
  const int64_t N = step->N;
  float *x = step->work, *u = x + N * CP, *y = u + N * CP, *qkv = y + N * CP, *h = qkv + N * QP, *s = h + N * FP;
  const void *const *at = step->weights;
  auto next = [&]() { return (const float *)*at++; };
  auto next_bias = [&]() { return BIAS ? next() : nullptr; };
  auto next_norm = [&]() {
    if (RMS_NORM) return Norm{};
    const float *weight = next(), *bias = next();
    return Norm{weight, bias};
  };
  const float *wte = next(), *wpe = next();  // with ROPE: rotations
  const Norm last = next_norm();
  const float *headw = next(), *headb = next_bias();
  auto add = [&](const float *b) {  // the residual and a bias
    for (int64_t r = 0; r < N; r++)
      for (int i = 0; i < CP; i += LANES) store(x + r * CP + i, load(x + r * CP + i) + biased(load(u + r * CP + i), b, i));
  };
  for (int64_t r = 0; r < N; r++) {
    const float *a = wte + step->tokens[r] * CP, *p = wpe + step->positions[r] * CP;
    for (int i = 0; i < CP; i += LANES) store(x + r * CP + i, ROPE ? load(a + i) : load(a + i) + load(p + i));
    if (RMS_NORM) norm_row(x + r * CP, {}, x + r * CP);
  }
  std::fill(y, y + N * CP, 0.0f);
  for (int64_t layer = 0; layer < step->layers; layer++) {
    const Norm first = next_norm();
    for (int64_t r = 0; r < N; r++) norm_row(x + r * CP, first, u + r * CP);
    product(next(), C, u, CP, N, qkv, QP);
    for (int64_t r = 0; r < N && (QK_NORM || ROPE); r++)
      for (int i = 0; i < 2 * C; i += HS)  // queries, then keys
        place(qkv + r * QP + i, wpe + step->positions[r] * TP);
    for (int64_t r = 0; r < N; r++)
      if (step->slot_mapping[r] >= 0) keep(step, layer, step->slot_mapping[r], qkv + r * QP);
    for (int64_t r = 0; r < N; r++)
      for (int head = 0; head < H; head++)
        attend(qkv + r * QP + head * HS, held_by(step, layer, r, head), step->positions[r] + 1,
               step->block_len, step->padded_len, s, y + r * CP + head * HS);
    product(next(), C, y, CP, N, u, CP);
    add(next_bias());
    const Norm second = next_norm();
    for (int64_t r = 0; r < N; r++) norm_row(x + r * CP, second, u + r * CP);
    product(next(), C, u, CP, N, h, FP);
    const float *b = next_bias();
    for (int64_t r = 0; r < N; r++)
      for (int i = 0; i < FP; i += LANES) store(h + r * FP + i, relu(biased(load(h + r * FP + i), b, i)));
    product(next(), 4 * C, h, FP, N, u, CP);
    add(next_bias());
  }
  for (int64_t i = 0; i < step->W; i++) norm_row(x + step->wanted[i] * CP, last, u + i * CP);
  product(headw, C, u, CP, step->W, step->logits, VP);
  for (int64_t i = 0; i < step->W && BIAS; i++)
    for (int o = 0; o < VP; o += LANES) store(step->logits + i * VP + o, biased(load(step->logits + i * VP + o), headb, o));
}

// The token behind position `pos`, as generate's native engine draws it.
ONE_WAY int64_t next_token(const NativeSequence &seq, int64_t pos, const float *logits) {
  const float *noise = seq.noise ? seq.noise + (pos + 1 - seq.n_prompt) * V : nullptr;
  return draw(logits, noise, seq.temperature, seq.top_k, seq.top_p);
}

// Reads S sequences, and decodes those that draw, all in one step each. `step` says where keys, values, logits and work
// are. Its logits get the rows of step after step; drawn (S, most) what each sequence drew.
extern "C" void run_steps(NativeStep *step, const Turn *turns, int64_t S, int64_t most, int64_t *drawn) {
  int64_t rows = S;
  for (int64_t i = 0; i < S; i++) rows += turns[i].count;
  std::vector<int64_t> numbers(5 * rows + S * step->longest);
  int64_t *tokens = numbers.data(), *of = tokens + rows, *positions = of + rows, *slots = positions + rows;
  int64_t *wanted = slots + rows, *tables = wanted + rows;
  step->tokens = tokens, step->sequences = of, step->positions = positions, step->slot_mapping = slots;
  step->wanted = wanted, step->block_tables = tables;
  for (int64_t round = 0; round < most; round++) {
    int64_t s = step->N = step->W = 0;
    auto takes_part = [&](const Turn &t) { return round < std::max<int64_t>(t.steps, 1); };
    for (const Turn *t = turns; t < turns + S; t++) {
      if (!takes_part(*t)) continue;
      std::copy(t->sequence->block_table, t->sequence->block_table + t->sequence->n_blocks, tables + s * step->longest);
      const int64_t last = t->start + t->count - 1 + round;
      for (int64_t pos = round ? last : t->start; pos <= last; pos++, step->N++) {
        tokens[step->N] = t->sequence->tokens[pos], of[step->N] = s, positions[step->N] = pos;
        const int64_t slot = t->sequence->block_table[pos / step->block_len] * step->block_len + pos % step->block_len;
        slots[step->N] = pos < t->cached ? -1 : slot;  // held by a block that sequences share
        if (pos > last - t->wanted) wanted[step->W++] = step->N;
      }
      s++;
    }
    read_step(step);
    for (int64_t i = 0; i < S; i++) {
      const Turn &t = turns[i];
      if (!takes_part(t)) continue;
      step->logits += (round ? 1 : t.wanted) * VP;  // the last of its rows draws
      const int64_t pos = t.start + t.count - 1 + round;
      if (t.steps) drawn[i * most + round] = t.sequence->tokens[pos + 1] = next_token(*t.sequence, pos, step->logits - VP);
    }
  }
}
