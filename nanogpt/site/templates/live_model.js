"use strict";
// The bundled model, its KV cache and its sampling, in double precision. It computes that model's form
// and no other: rotary positions, RMSNorm without weights (also of the embeddings), normalised queries
// and keys, a squared ReLU, no biases. tests/site/test_live.py compares its texts with Python's.
// Knows nothing of the page.

// Mersenne Twister, as torch.Generator().manual_seed(seed) runs it (Matsumoto and Nishimura 1998).
function mersenne(seed) {
  const state = new Uint32Array(624);
  let next = 624;
  state[0] = seed;
  for (let i = 1; i < 624; i++) {
    const last = state[i - 1] ^ (state[i - 1] >>> 30);
    state[i] = Math.imul(1812433253, last) + i;
  }
  const twist = () => {
    for (let i = 0; i < 624; i++) {
      const y = (state[i] & 0x80000000) | (state[(i + 1) % 624] & 0x7fffffff);
      state[i] = state[(i + 397) % 624] ^ (y >>> 1) ^ (y & 1 ? 0x9908b0df : 0);
    }
    next = 0;
  };
  return () => {
    if (next === 624) twist();
    let y = state[next++];
    y ^= y >>> 11;
    y ^= (y << 7) & 0x9d2c5680;
    y ^= (y << 15) & 0xefc60000;
    return (y ^ (y >>> 18)) >>> 0;
  };
}

// Exponential noise, one number for each token of the vocabulary: draw_noise in Python.
function noiseOf(seed, vocabulary) {
  const bits = mersenne(seed);
  return () => Float64Array.from({ length: vocabulary }, () => {
    const high = bits() & 0x1fffff; // 53 of 64 bits, the high word first
    const u = (high * 2 ** 32 + bits()) * 2 ** -53;
    return Math.max(Math.fround(-Math.log1p(-u)), 2 ** -126);
  });
}

// The weights by name, cut from one buffer in the order in which they were packed. A matrix is codes of
// 8 bits and a scale for each row; the embeddings are 32-bit numbers.
function unpack(config, base64) {
  const text = atob(base64), bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  const { vocab_size: V, n_embd: C, n_layer: L } = config;
  let at = 0;
  const take = (Kind, size) => {
    const part = new Kind(bytes.buffer, at, size);
    at += part.byteLength;
    return part;
  };
  const matrix = (out, inside) => inFours(take(Int8Array, out * inside), take(Float32Array, out));
  const tokens = Float64Array.from(take(Float32Array, V * C));
  const blocks = [];
  for (let i = 0; i < L; i++) {
    blocks.push({ qkv: matrix(3 * C, C), proj: matrix(C, C), up: matrix(4 * C, C), down: matrix(C, 4 * C) });
  }
  const weights = { tokens, blocks, head: matrix(V, C) };
  if (at !== bytes.length) throw new Error(`${bytes.length} bytes of weights, but the shape has ${at}`);
  return weights;
}

// A matrix for multiply: the first numbers of four rows, then their second ones. Zeros fill the last four.
function inFours(codes, scales) {
  const inside = codes.length / scales.length;
  const weight = new Float64Array(4 * Math.ceil(scales.length / 4) * inside);
  scales.forEach((scale, row) => {
    const first = (row - (row % 4)) * inside + (row % 4);
    // Python's product of the two is a 32-bit number.
    for (let i = 0; i < inside; i++) weight[first + 4 * i] = Math.fround(codes[row * inside + i] * scale);
  });
  return weight;
}

// y = W x, four rows at a time: each number of x is read once for them, and no addition waits for another row's.
function multiply(weight, x, y) {
  for (let row = 0, at = 0; row < y.length; row += 4) {
    let a = 0, b = 0, c = 0, d = 0;
    for (let i = 0; i < x.length; i++, at += 4) {
      a += weight[at] * x[i];
      b += weight[at + 1] * x[i];
      c += weight[at + 2] * x[i];
      d += weight[at + 3] * x[i];
    }
    y[row] = a;
    y[row + 1] = b; // past the end, after the last row, JavaScript drops it
    y[row + 2] = c;
    y[row + 3] = d;
  }
  return y;
}

// RMSNorm without weights, in place. The ε is PyTorch's for double precision.
function rmsNorm(x) {
  let square = 0;
  for (let i = 0; i < x.length; i++) square += (x[i] * x[i]) / x.length;
  const scale = 1 / Math.sqrt(square + Number.EPSILON);
  for (let i = 0; i < x.length; i++) x[i] *= scale;
  return x;
}

const normalised = (x) => rmsNorm(x.slice());

function add(x, y, drop) {
  for (let i = 0; i < x.length; i++) x[i] += drop ? y[i] * drop() : y[i];
}

function softmax(x, length) {
  let largest = -Infinity, sum = 0;
  for (let i = 0; i < length; i++) largest = Math.max(largest, x[i]);
  for (let i = 0; i < length; i++) sum += x[i] = Math.exp(x[i] - largest);
  for (let i = 0; i < length; i++) x[i] /= sum;
  return x;
}

// Adds the numbers of some stages to the newest layer of a row's trace. The residual stream goes on changing: it is copied.
function keep({ trace }, { attended, output, ...stages }) {
  if (!trace) return;
  if (attended) stages.attended = attended.slice();
  if (output) stages.output = output.slice();
  Object.assign(trace.layers.at(-1), stages);
}

class Model {
  constructor(config, base64) {
    this.config = config;
    this.weights = unpack(config, base64);
    this.scores = new Float64Array(config.block_size);
  }

  // For each layer, one row of keys and one of values for each slot, made when it is first written.
  emptyCache() {
    return Array.from({ length: this.config.n_layer }, () => ({ keys: [], values: [] }));
  }

  // The logits after the last row. A row {token, position, slot, first, last} writes its keys and values
  // into its slot of the cache and looks at the slots first … last. With `drop`, dropout is on.
  // The last row, and each one that brings a `trace`, gets the numbers of every stage into its trace.
  // It pauses after each row of each layer, as a browser must be free to draw and to scroll.
  *logits(rows, cache, drop) {
    const { weights: w } = this;
    rows.at(-1).trace ??= {};
    const xs = rows.map((row) => this.embed(row));
    for (const [layer, block] of w.blocks.entries()) {
      const here = cache[layer], queries = [];
      for (const { trace } of rows) trace?.layers.push({ weights: [] });
      for (const [i, row] of rows.entries()) {
        queries.push(this.store(block, xs[i], row, here));
        yield;
      }
      for (const [i, row] of rows.entries()) {
        this.compute(block, xs[i], queries[i], here, row, drop);
        yield;
      }
    }
    for (const [i, { trace }] of rows.entries()) if (trace) this.finish(xs[i], trace);
    return rows.at(-1).trace.logits;
  }

  // The keys and values of one row, into the cache. Returns its queries.
  store({ qkv }, x, row, { keys, values }) {
    const C = x.length, ln1 = normalised(x), all = multiply(qkv, ln1, new Float64Array(3 * C));
    this.normAndRotate(all.subarray(0, 2 * C), row.position); // before the key is kept: its angle never changes
    const [query, key, value] = [0, C, 2 * C].map((from) => all.subarray(from, from + C));
    keys[row.slot] = key;
    values[row.slot] = value;
    keep(row, { ln1, query, key, value });
    return query;
  }

  // The rest of a block for one row: attention, then the feed-forward part, each added to x.
  compute(block, x, queries, here, row, drop) {
    const C = x.length;
    const mix = this.attend(queries, here, row, drop), proj = multiply(block.proj, mix, new Float64Array(C));
    add(x, proj, drop);
    keep(row, { mix, proj, attended: x });
    const ln2 = normalised(x), hidden = multiply(block.up, ln2, new Float64Array(4 * C));
    for (let i = 0; i < hidden.length; i++) hidden[i] = Math.max(hidden[i], 0) ** 2;
    const down = multiply(block.down, hidden, new Float64Array(C));
    add(x, down, drop);
    keep(row, { ln2, hidden, down, output: x });
  }

  // After the last block: the final norm, and a logit for each token of the vocabulary.
  finish(x, trace) {
    trace.lnf = normalised(x);
    trace.logits = multiply(this.weights.head, trace.lnf, new Float64Array(this.config.vocab_size));
  }

  // What goes into the first block for a token.
  embed({ token, trace }) {
    const C = this.config.n_embd, table = this.weights.tokens.subarray(token * C, (token + 1) * C);
    const embedding = normalised(table);
    if (trace) Object.assign(trace, { table, embedding: embedding.slice(), layers: [] });
    return embedding;
  }

  // Norms and rotations of the heads of queries and keys, in place.
  normAndRotate(heads, position) {
    const { n_embd, n_head, rope_base } = this.config, hs = n_embd / n_head;
    for (let from = 0; from < heads.length; from += hs) rmsNorm(heads.subarray(from, from + hs));
    // Number i of a head's first half and number i of its second are a point, which turns.
    for (let i = 0; i < hs / 2; i++) {
      const angle = position * rope_base ** -(i / (hs / 2)), [cos, sin] = [Math.cos(angle), Math.sin(angle)];
      for (let at = i; at < heads.length; at += hs) {
        const [a, b] = [heads[at], heads[at + hs / 2]];
        heads[at] = a * cos - b * sin;
        heads[at + hs / 2] = b * cos + a * sin;
      }
    }
  }

  // softmax(q kᵀ / √hs) of one head over the slots first … last, in an array that the next call uses again.
  share(q, keys, head, { first, last }) {
    const hs = this.config.n_embd / this.config.n_head, from = head * hs;
    for (let s = first; s <= last; s++) {
      const key = keys[s];
      let dot = 0;
      for (let i = from; i < from + hs; i++) dot += q[i] * key[i];
      this.scores[s - first] = dot / Math.sqrt(hs);
    }
    return softmax(this.scores, last - first + 1);
  }

  // What every head mixes of the values.
  attend(q, { keys, values }, row, drop) {
    const { n_embd: C, n_head: H } = this.config, hs = C / H, out = new Float64Array(C), { first, last } = row;
    for (let head = 0; head < H; head++) {
      const weights = this.share(q, keys, head, row), from = head * hs;
      row.trace?.layers.at(-1).weights.push(Float32Array.from(weights.subarray(0, last - first + 1)));
      for (let s = first; s <= last; s++) {
        const weight = drop ? weights[s - first] * drop() : weights[s - first], value = values[s];
        for (let i = from; i < from + hs; i++) out[i] += weight * value[i];
      }
    }
    return out;
  }
}

// The probabilities of the next token, up to a factor: those of the topK likeliest that reach topP together.
function likely(logits, { temperature, topK, topP }) {
  const probs = softmax(logits.map((x) => x / temperature), logits.length);
  const order = likeliest(probs);
  const weakest = probs[order[Math.min(topK, probs.length) - 1]];
  for (let i = 0; i < probs.length; i++) if (probs[i] < weakest) probs[i] = 0;
  const sum = order.reduce((sum, i) => sum + probs[i], 0);
  let reached = 0;
  for (const i of topP < 1 ? order : []) {
    const share = probs[i] / sum;
    reached += share;
    if (reached - share >= topP) probs[i] = 0;
  }
  return probs;
}

const likeliest = (probs) => [...probs.keys()].sort((a, b) => probs[b] - probs[a] || a - b);

// sample(): the token that wins the race.
function sample(probs, noise) {
  let best = 0;
  for (let i = 1; i < probs.length; i++) if (probs[i] / noise[i] > probs[best] / noise[best]) best = i;
  return best;
}

// What a bug changes in the rows of one step: a prefill, or a decode step after `prompt` tokens.
const FAULTS = {
  position: (row, prefill) => (prefill ? row : { ...row, position: 0 }),
  mask: (row, prefill, prompt) => (prefill ? { ...row, last: prompt - 1 } : row),
  append: (row, prefill, prompt, window) => (prefill ? row : { ...row, slot: prompt % window, last: Math.min(prompt, window - 1) }),
  dropout: (row) => row,
};
const DROPPED = 0.2; // the lecture's rate

// generate(): run step() for each new token, or next(), which does not pause. Without a cache every step reads the whole text.
// A token sees the last block_size ones. The cache has a slot for each of them: a new one takes that of the oldest.
class Decoding {
  constructor(model, prompt, seed, sampling, cached, fault = "") {
    Object.assign(this, { model, sampling, cached, fault, prompt: prompt.length, text: [...prompt] });
    this.noise = noiseOf(seed, model.config.vocab_size);
    this.cache = model.emptyCache();
    this.places = []; // of each slot: where in the text its token stands
    this.seen = []; // of each new token: what it was drawn from
    this.reads = []; // of each step: how many positions it read
    this.start = this.fresh = 0; // of the last step: the first position that it read, the first that it did not
    this.traced = false; // whether it keeps every stage of every row, in `traces`, and of each step what it drew with, in `draws`
    this.traces = [];
    this.draws = [];
    const bits = mersenne(seed);
    if (fault === "dropout") this.drop = () => (bits() < DROPPED * 2 ** 32 ? 0 : 1 / (1 - DROPPED));
  }

  // The token at a place of the text, and the slots of the cache that it writes and sees.
  row(token, at) {
    const window = this.model.config.block_size;
    const row = { token, at, position: at, trace: this.traced ? {} : undefined };
    if (this.cached) return { ...row, slot: at % window, first: 0, last: Math.min(at, window - 1) };
    return { ...row, slot: at, first: Math.max(0, at - window + 1), last: at };
  }

  // One step; it pauses as `logits` does, and what the page shows of it changes when it is whole.
  *step() {
    const start = this.cached ? this.fresh : 0, prefill = this.fresh === 0;
    const change = FAULTS[this.fault] ?? ((row) => row);
    const rows = this.text.slice(start).map((token, i) => {
      return change(this.row(token, start + i), prefill, this.prompt, this.model.config.block_size);
    });
    const logits = yield* this.model.logits(rows, this.cache, this.drop);
    Object.assign(this, { rows, start, fresh: this.text.length });
    this.reads.push(rows.length);
    for (const { slot, at } of rows) this.places[slot] = at;
    const probs = likely(logits, this.sampling), noise = this.noise();
    const token = sample(probs, noise);
    this.remember(rows.at(-1), probs, token);
    if (this.traced) {
      this.traces.push(...rows.map(({ trace }) => trace));
      this.draws.push({ probs, noise });
    }
    this.text.push(token);
  }

  // What the newest token was drawn from: the weights of each head, and the places in the text they belong to;
  // its probability, and the two likeliest others with theirs.
  remember({ first, last, trace }, probs, token) {
    const looked = trace.layers.flatMap(({ weights }) => weights);
    const sum = probs.reduce((sum, p) => sum + p, 0);
    const others = likeliest(probs).filter((other) => other !== token && probs[other]).slice(0, 2);
    const chances = [token, ...others].map((each) => ({ token: each, chance: probs[each] / sum }));
    this.seen.push({ places: Uint16Array.from(this.places.slice(first, last + 1)), looked, chances });
  }

  next() {
    const step = this.step();
    while (!step.next().done);
  }
}
