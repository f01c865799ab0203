// The forward pass of a decoder, and the decode loop over it, for every DecoderConfig.
//
// A step reads N rows; each row is one token of one sequence at one position. A single row is
// decoding, several rows of one sequence are a chunk of its prompt, and rows of several sequences are
// a batch. Keys and values are stored in blocks of positions. The single-text decode loop and serving
// both call run_steps.
//
// Threads share the panels of a product, the heads of attention, and rows. Each number is computed
// by one thread, so the number of threads does not change a bit of the output.

// What Python passes is declared in decoder_library.py, with a comment at each field, and becomes
// shared_types.h when this file is compiled: Config, the fields of a DecoderConfig; Matrix, Affine,
// Layer and Decoder, its weights; Source, what a matrix is packed from and into; Cache, Sequence and
// Turn, the texts and what to do with them; Norm, Activation and Positions, the enums of a config.

#include "kernels.h"
#include "shared_types.h"
#include "threads.h"
#if defined(__linux__)
#include <sys/mman.h>
#endif

constexpr int64_t PASS_ROWS = 256;  // the most rows of a long prompt in one pass over the weights

struct Row {
  const Sequence *sequence;
  int64_t position;
  bool keeps;       // whether to store its keys and values
  float *logits;    // null if not needed
};

// Queries of one KV head in one sequence: the unit of attention that a thread computes at a time.
struct Queries {
  int64_t row;         // the first row of the sequence in this pass
  int64_t head;        // the KV head
  int64_t begin, end;  // range of (row, query head) pairs of this KV head
};

// A sequence that samples in this round, and its logits.
struct Sampler {
  const Turn *turn;
  int64_t position;  // of the last known token
  const float *logits;
};

// The buffers of a step. They grow as needed and are kept for the next step.
struct Work {
  Team team;
  Floats x, u, y, qkv, h;
  std::vector<int16_t> codes;  // quantised rows, with 8-bit weights
  std::vector<float> units;
  std::vector<Row> rows;
  std::vector<Queries> queries;
  std::vector<Sampler> samplers;
  std::vector<AttentionWork> attention;  // one per thread
  std::vector<SamplingWork> sampling;
};

// A forward pass over at most PASS_ROWS rows.
class Pass {
 public:
  Pass(const Decoder &m, const Cache &cache, Work &work) : m(m), cache(cache), work(work) {
    work.x.resize(PASS_ROWS * x_stride);
    work.u.resize(PASS_ROWS * x_stride);
    work.y.resize(PASS_ROWS * y_stride);
    work.qkv.resize(PASS_ROWS * qkv_stride);
    work.h.resize(PASS_ROWS * h_stride);
    const int64_t longest = std::max({m.config.n_embd, query_width, m.config.hidden});
    if (m.bits == 8) work.codes.resize(PASS_ROWS * round_up(longest, 2));
    if (m.bits == 8) work.units.resize(PASS_ROWS);
    work.attention.resize(std::max<size_t>(work.attention.size(), work.team.threads));
    for (AttentionWork &w : work.attention) {
      w.queries.resize(QUERIES * head_size);
      w.scores.resize(QUERIES * TILE * LANES);
      w.out.resize(QUERIES * MOST_SPLIT * value_size);
    }
  }

  // Writes the logits of the rows that want them, and stores the keys and values of all rows.
  void read(const Row *rows, int64_t N) {
    float *x = work.x.data();
    float *u = work.u.data();
    float *y = work.y.data();
    float *qkv = work.qkv.data();
    float *h = work.h.data();
    const float eps = m.config.norm_eps;
    const Norm kind = m.config.norm;
    auto norms = [&](Affine a) {
      by_rows(N, 4 * width, [&](int64_t r) {
        norm_row(x + r * x_stride, m.config.n_embd, kind, a.weight, a.bias, eps, u + r * x_stride);
      });
    };
    auto add = [&](const float *bias) {  // adds u to the residual stream
      by_rows(N, 2 * width, [&](int64_t r) {
        for (int64_t i = 0; i < width; i += LANES) {
          vec sum = load(u + r * x_stride + i);
          if (bias) sum += load(bias + i);
          store(x + r * x_stride + i, load(x + r * x_stride + i) + sum);
        }
      });
    };
    // 1. embeddings: what each token is, and where it is
    by_rows(N, 2 * width, [&](int64_t r) { embed(rows[r], x + r * x_stride); });
    const int64_t seen = split_queries(rows, N);
    for (int64_t l = 0; l < m.config.n_layer; l++) {
      const Layer &layer = m.layer[l];
      // 2. attention
      norms(layer.norm1);
      multiply(layer.qkv, qkv_rows, m.config.n_embd, u, x_stride, N, qkv, qkv_stride);
      by_rows(N, 4 * qkv_width, [&](int64_t r) { place(l, rows[r], qkv + r * qkv_stride); });
      share(work.team, work.queries.size(), 2 * head_size * seen,
            [&](int64_t begin, int64_t end, int thread) {
              for (int64_t i = begin; i < end; i++)
                attention(l, work.queries[i], rows, qkv, y, work.attention[thread]);
            });
      multiply(layer.proj, m.config.n_embd, query_width, y, y_stride, N, u, x_stride);
      add(layer.proj.bias);
      // 3. the feed-forward layers
      norms(layer.norm2);
      multiply(layer.up, up_width, m.config.n_embd, u, x_stride, N, h, h_stride);
      by_rows(N, 16 * hidden, [&](int64_t r) {
        activate_row(h + r * h_stride, hidden, m.config.activation, layer.up.bias,
                     m.config.gated);
      });
      multiply(layer.down, m.config.n_embd, m.config.hidden, h, h_stride, N, u, x_stride);
      add(layer.down.bias);
    }
    // 4. logits
    int64_t wanted = 0;
    float *first = nullptr;
    for (int64_t r = 0; r < N; r++) {
      if (!rows[r].logits) continue;
      if (!first) first = rows[r].logits;
      norm_row(x + r * x_stride, m.config.n_embd, kind, m.norm.weight, m.norm.bias, eps,
               u + wanted++ * x_stride);
    }
    if (!wanted) return;
    multiply(m.head, m.config.vocab_size, m.config.n_embd, u, x_stride, wanted, first, vocab);
    by_rows(wanted, 4 * vocab, [&](int64_t r) { finish(first + r * vocab); });
  }

 private:
  const Decoder &m;
  const Cache &cache;
  Work &work;
  const bool rotary = m.config.positions == Positions::ROTARY;
  const int64_t width = round_up(m.config.n_embd, LANES);
  const int64_t head_size = m.config.head_size;
  const int64_t value_size = round_up(head_size, LANES);
  const int64_t query_width = m.config.n_head * head_size;
  const int64_t qkv_rows = (m.config.n_head + 2 * m.config.kv_heads) * head_size;
  const int64_t qkv_width = round_up(qkv_rows, LANES);
  const int64_t hidden = round_up(m.config.hidden, LANES);
  const int64_t up_width = hidden * (1 + m.config.gated);
  const int64_t vocab = round_up(m.config.vocab_size, LANES);
  const int64_t x_stride = spread(width);
  const int64_t y_stride = spread(query_width);
  const int64_t qkv_stride = spread(qkv_width);
  const int64_t h_stride = spread(up_width);

  // Calls body(row) for N rows, each about as much work as `each` multiplications.
  template <class Body>
  void by_rows(int64_t N, int64_t each, Body body) {
    share(work.team, N, N * each, [&](int64_t begin, int64_t end, int) {
      for (int64_t r = begin; r < end; r++) body(r);
    });
  }

  // out = x times a matrix (n, K), without its bias.
  void multiply(const Matrix &a, int64_t n, int64_t K, const float *x, int64_t stride, int64_t N,
                float *out, int64_t out_stride) {
    const int64_t panels = round_up(n, LANES) / LANES;
    const int64_t products = N * panels * LANES * K;
    if (m.bits == 32)
      return share(work.team, panels, products, [&](int64_t begin, int64_t end, int) {
        const float *w = (const float *)a.w + begin * K * LANES;
        product(w, end - begin, K, x, stride, N, out + begin * LANES, out_stride);
      });
    const int64_t padded = round_up(K, 2);
    int16_t *codes = work.codes.data();
    by_rows(N, 4 * K, [&](int64_t r) {
      work.units[r] = round_row(x + r * stride, K, codes + r * padded, padded);
    });
    share(work.team, panels, products, [&](int64_t begin, int64_t end, int) {
      const int8_t *w = (const int8_t *)a.w + begin * padded * LANES;
      const float *scales = a.scales + begin * LANES;
      product(w, scales, end - begin, padded, codes, work.units.data(), N, out + begin * LANES,
              out_stride);
    });
  }

  void embed(const Row &row, float *x) {
    const int64_t C = m.config.n_embd;
    const float *a = m.tokens + row.sequence->tokens[row.position] * C;
    const float *p = m.positions + row.position * C;
    for (int64_t i = 0; i < C; i++) x[i] = rotary ? a[i] : a[i] + p[i];
    for (int64_t i = C; i < width; i++) x[i] = 0;
    if (m.config.embed_norm)
      norm_row(x, C, m.config.norm, m.embed_norm.weight, m.embed_norm.bias, m.config.norm_eps, x);
  }

  // Applies biases, QK-norm and rotary embeddings to one row's queries, keys and values, and stores
  // its keys and values in the cache.
  void place(int64_t l, const Row &row, float *qkv) {
    const Layer &layer = m.layer[l];
    if (layer.qkv.bias)
      for (int64_t i = 0; i < qkv_width; i += LANES)
        store(qkv + i, load(qkv + i) + load(layer.qkv.bias + i));
    for (int64_t head = 0; head < m.config.n_head + m.config.kv_heads; head++) {
      float *x = qkv + head * head_size;
      const Affine &affine = head < m.config.n_head ? layer.query_norm : layer.key_norm;
      if (m.config.qk_norm)
        norm_row(x, head_size, Norm::RMS, affine.weight, nullptr, m.config.norm_eps, x);
      if (rotary) rotate_row(x, head_size, m.positions + row.position * 2 * head_size);
    }
    if (!row.keeps) return;
    for (int64_t j = 0; j < m.config.kv_heads; j++) {
      const float *key = qkv + (m.config.n_head + j) * head_size;
      cached(l, j, *row.sequence).put(row.position, key, key + m.config.kv_heads * head_size);
    }
  }

  // The cache of one KV head of a sequence.
  HeadCache cached(int64_t l, int64_t head, const Sequence &sequence) const {
    const int64_t kv_heads = m.config.kv_heads;
    const int64_t slots = round_up(cache.block_len, LANES);
    HeadCache c;
    c.table = sequence.table;
    c.key_stride = kv_heads * slots * head_size;
    c.value_stride = kv_heads * slots * value_size;
    c.block_len = cache.block_len;
    c.head_size = head_size;
    c.value_size = value_size;
    c.keys = cache.keys + l * cache.blocks * c.key_stride + head * slots * head_size;
    c.values = cache.values + l * cache.blocks * c.value_stride + head * slots * value_size;
    return c;
  }

  // Lists the queries of N rows in work.queries. Returns the number of query-key pairs.
  int64_t split_queries(const Row *rows, int64_t N) {
    const int64_t group = m.config.n_head / m.config.kv_heads;
    int64_t pairs = 0;
    work.queries.clear();
    int64_t run;  // rows of one sequence
    for (int64_t r = 0; r < N; r += run) {
      for (run = 1; r + run < N && rows[r + run].sequence == rows[r].sequence; run++) {}
      for (int64_t head = 0; head < m.config.kv_heads; head++)
        for (int64_t begin = 0; begin < run * group; begin += QUERIES)
          work.queries.push_back({r, head, begin, std::min(run * group, begin + QUERIES)});
      pairs += run * m.config.n_head * (rows[r + run - 1].position + 1);
    }
    return pairs;
  }

  // Attends to the keys and values of these queries' sequence, up to each query's own position.
  void attention(int64_t l, const Queries &q, const Row *rows, const float *qkv, float *y,
                 AttentionWork &w) {
    const int64_t group = m.config.n_head / m.config.kv_heads;
    const int64_t window = m.layer[l].window;
    const float scale = 1 / std::sqrt((float)head_size);
    const int64_t n = q.end - q.begin;
    // Query heads of one group share the keys; each is treated as a row of its own.
    auto row_of = [&](int64_t i) { return q.row + (q.begin + i) / group; };
    auto column_of = [&](int64_t i) { return (q.head * group + (q.begin + i) % group) * head_size; };
    for (int64_t i = 0; i < n; i++) {
      const float *from = qkv + row_of(i) * qkv_stride + column_of(i);
      float *to = w.queries.data() + i * head_size;
      for (int64_t d = 0; d < head_size; d++) to[d] = from[d] * scale;
      const int64_t pos = rows[row_of(i)].position;
      w.sights[i] = {pos, window ? pos - window + 1 : 0, m.config.sinks};
    }
    const int64_t out_stride = attend(cached(l, q.head, *rows[q.row].sequence), n, w);
    for (int64_t i = 0; i < n; i++) {
      const float *from = w.out.data() + i * out_stride;
      float *to = y + row_of(i) * y_stride + column_of(i);
      for (int64_t d = 0; d < head_size; d++) to[d] = from[d];
    }
  }

  void finish(float *logits) {
    const float *bias = m.head.bias;
    const float cap = m.config.logit_softcap;
    if (!bias && !cap) return;
    for (int64_t i = 0; i < vocab; i += LANES) {
      vec x = load(logits + i);
      if (bias) x += load(bias + i);
      if (cap) x = cap * hyperbolic_tangent(x / cap);
      store(logits + i, x);
    }
  }
};

// Samples the token after position `pos`, with that token's noise.
static int64_t next_token(const Decoder &m, const Sequence &s, int64_t pos, const float *logits,
                          SamplingWork &work) {
  const float *noise = s.noise ? s.noise + (pos + 1 - s.noise_from) * s.noise_stride : nullptr;
  if (s.n_stops && pos + 1 < s.stops_from) {  // on a copy, because the caller may read the logits
    work.allowed.assign(logits, logits + m.config.vocab_size);
    for (int64_t i = 0; i < s.n_stops; i++)
      work.allowed[s.stops[i]] = -FLT_MAX;
    logits = work.allowed.data();
  }
  return sample(logits, m.config.vocab_size, noise, s.temperature, s.top_k, s.top_p, work);
}

// Collects the rows of S turns for this round. The logits of the first wanted row go to `logits`;
// returns the end of the logits.
static float *gather_rows(const Decoder &m, const Turn *turns, int64_t S, int64_t round,
                          float *logits, std::vector<Row> &rows) {
  const int64_t stride = round_up(m.config.vocab_size, LANES);
  rows.clear();
  for (const Turn *t = turns; t < turns + S; t++) {
    if (round >= std::max<int64_t>(t->steps, 1)) continue;
    const int64_t last = t->start + t->count - 1 + round;
    const int64_t wanted = round ? 1 : t->wanted;
    for (int64_t pos = round ? last : t->start; pos <= last; pos++) {
      const bool wants = pos > last - wanted;
      rows.push_back({t->sequence, pos, pos >= t->cached, wants ? logits : nullptr});
      if (wants) logits += stride;
    }
  }
  return logits;
}

static int64_t sampling_work(const Decoder &m, int64_t n) { return 8 * n * m.config.vocab_size; }

static void use_team(Work &work, int64_t threads) {
  work.team = team_of(threads);
  work.sampling.resize(std::max<size_t>(work.sampling.size(), work.team.threads));
}

static void read_rows(const Decoder &m, const Cache &cache, Work &work) {
  Pass pass(m, cache, work);
  const int64_t N = work.rows.size();
  for (int64_t r = 0; r < N; r += PASS_ROWS) pass.read(&work.rows[r], std::min(PASS_ROWS, N - r));
}

extern "C" int64_t lanes() { return LANES; }
// Sets the least work of a part, in multiplications; returns the old value. For tests.
extern "C" int64_t set_least_work(int64_t n) { return least_work.exchange(n); }
extern "C" void *new_work() { return new Work; }
extern "C" void delete_work(void *work) { delete (Work *)work; }

// Asks the system for huge pages in a region that is not used yet; it may refuse. Reading 43 MB of
// weights in pages of 2 MB was 1.16 times faster than in pages of 4 KB (Zen 3).
extern "C" void use_huge_pages(char *memory, int64_t bytes) {
#if defined(__linux__)
  const int64_t page = 1 << 21;
  char *first = (char *)round_up((int64_t)memory, page);
  char *end = (char *)((int64_t)(memory + bytes) / page * page);
  if (first < end) madvise(first, end - first, MADV_HUGEPAGE);
#endif
}

// Whether none of the numbers is NaN or infinite.
extern "C" int64_t are_numbers(const float *x, int64_t n, int64_t threads) {
  std::atomic<bool> right{true};
  share(team_of(threads), n, n, [&](int64_t begin, int64_t end, int) {
    if (!all_finite(x + begin, end - begin)) right = false;
  });
  return right;
}

// A 64-bit hash of all bytes, the same on any number of threads.
extern "C" uint64_t fingerprint_of(const void *data, int64_t bytes, int64_t threads) {
  constexpr int64_t PART = 1 << 20;
  if (bytes <= PART) return fingerprint(data, bytes);
  std::vector<uint64_t> prints((bytes + PART - 1) / PART);
  share(team_of(threads), prints.size(), bytes / 4, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; i++)
      prints[i] = fingerprint((const char *)data + i * PART, std::min(PART, bytes - i * PART));
  });
  return fingerprint(prints.data(), prints.size() * sizeof prints[0]);
}

// Packs a matrix (n, K) and its bias into panels. With gates `parts` is 2, and each half of the rows
// begins with a new panel.
extern "C" void pack_matrix(const Source *s, int64_t threads) {
  const Team team = team_of(threads);
  const int64_t part = s->n / s->parts;
  const int64_t padded = round_up(part, LANES);
  for (int64_t i = 0; i < s->parts; i++) {
    share(team, padded / LANES, part * s->K, [&](int64_t begin, int64_t end, int) {
      const int64_t first = begin * LANES;
      const int64_t n = std::min(part, end * LANES) - first;
      const int64_t to = i * padded + first;
      const float *w = s->weight + (i * part + first) * s->K;
      if (s->scales) {
        int8_t *panels = (int8_t *)s->panels + to * round_up(s->K, 2);
        pack(w, n, s->K, panels, s->scales + to);
      } else {
        pack(w, n, s->K, (float *)s->panels + to * s->K);
      }
    });
    for (int64_t row = 0; s->bias && row < padded; row++)
      s->padded_bias[i * padded + row] = row < part ? s->bias[i * part + row] : 0;
  }
}

// Reads S sequences, then decodes those that sample, all of them together in each step. If `keep` is
// 1, the logits of all steps are written one after another; otherwise each step overwrites those of
// the last. `sampled` (S, most) receives each sequence's new tokens, unless it is null.
extern "C" void run_steps(const Decoder *m, const Cache *cache, void *memory, const Turn *turns,
                          int64_t S, int64_t most, int64_t keep, float *logits, int64_t *sampled,
                          int64_t threads) {
  Work &work = *(Work *)memory;
  use_team(work, threads);
  const int64_t stride = round_up(m->config.vocab_size, LANES);
  float *start = logits;
  for (int64_t round = 0; round < most; round++) {
    float *end = gather_rows(*m, turns, S, round, logits, work.rows);
    read_rows(*m, *cache, work);
    work.samplers.clear();
    for (const Turn *t = turns; t < turns + S; t++) {
      if (round >= std::max<int64_t>(t->steps, 1)) continue;
      logits += (round ? 1 : t->wanted) * stride;  // the last of its rows samples
      if (t->steps) work.samplers.push_back({t, t->start + t->count - 1 + round, logits - stride});
    }
    share(work.team, work.samplers.size(), sampling_work(*m, work.samplers.size()),
          [&](int64_t begin, int64_t end, int thread) {
            for (int64_t i = begin; i < end; i++) {
              const Sampler &s = work.samplers[i];
              Sequence &text = *s.turn->sequence;
              const int64_t token =
                  next_token(*m, text, s.position, s.logits, work.sampling[thread]);
              text.tokens[s.position + 1] = token;
              if (sampled) sampled[(s.turn - turns) * most + round] = token;
            }
          });
    logits = keep ? end : start;
  }
}

// Reads known and proposed tokens in one pass. `choices` (all rows) receives the model's token after
// each; the texts are not changed.
extern "C" void check(const Decoder *m, const Cache *cache, void *memory, const Turn *turns,
                      int64_t S, float *logits, int64_t *choices, int64_t threads) {
  Work &work = *(Work *)memory;
  use_team(work, threads);
  gather_rows(*m, turns, S, 0, logits, work.rows);
  read_rows(*m, *cache, work);
  share(work.team, work.rows.size(), sampling_work(*m, work.rows.size()),
        [&](int64_t begin, int64_t end, int thread) {
          for (int64_t r = begin; r < end; r++) {
            const Row &row = work.rows[r];
            choices[r] = next_token(*m, *row.sequence, row.position, row.logits,
                                    work.sampling[thread]);
          }
        });
}
