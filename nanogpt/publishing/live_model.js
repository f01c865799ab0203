"use strict";
// The lecture's GPT, its KV cache and its sampling in double precision. Knows nothing of the page.

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

function halfToDouble(half) {
  const sign = half & 0x8000 ? -1 : 1, exponent = (half >> 10) & 31, fraction = half & 1023;
  if (exponent === 0) return sign * fraction * 2 ** -24;
  return sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
}

// The weights by name, cut from one buffer in the order in which they were packed.
function unpack(config, base64) {
  const bytes = Uint8Array.from(atob(base64), (c) => c.charCodeAt(0));
  const all = Float64Array.from(new Uint16Array(bytes.buffer), halfToDouble);
  const { vocab_size: V, block_size: S, n_embd: C, n_layer: L } = config;
  let at = 0;
  const take = (size) => all.subarray(at, (at += size));
  const norm = () => ({ weight: take(C), bias: take(C) });
  const linear = (out, inside) => ({ weight: take(out * inside), bias: take(out) });
  const tokens = take(V * C), positions = take(S * C), blocks = [];
  for (let i = 0; i < L; i++) {
    const qkv = { weight: take(3 * C * C), bias: null }, proj = linear(C, C);
    blocks.push({ qkv, proj, into: linear(4 * C, C), back: linear(C, 4 * C), ln1: norm(), ln2: norm() });
  }
  const weights = { tokens, positions, blocks, ln_f: norm(), lm_head: linear(V, C) };
  if (at !== all.length) throw new Error(`${all.length} weights, but the shape has ${at}`);
  return weights;
}

// y = W x + b
function multiply({ weight, bias }, x, y) {
  const n = x.length;
  for (let row = 0, at = 0; row < y.length; row++, at += n) {
    let a = 0, b = 0, c = 0, d = 0; // four sums, so that no addition waits for the one before it
    for (let i = 0; i < n; i += 4) {
      a += weight[at + i] * x[i];
      b += weight[at + i + 1] * x[i + 1];
      c += weight[at + i + 2] * x[i + 2];
      d += weight[at + i + 3] * x[i + 3];
    }
    y[row] = a + b + (c + d) + (bias ? bias[row] : 0);
  }
  return y;
}

function normalise({ weight, bias }, x) {
  const n = x.length;
  let mean = 0, variance = 0;
  for (let i = 0; i < n; i++) mean += x[i] / n;
  for (let i = 0; i < n; i++) variance += (x[i] - mean) ** 2 / n;
  const scale = 1 / Math.sqrt(variance + 1e-5);
  return x.map((value, i) => (value - mean) * scale * weight[i] + bias[i]);
}

function softmax(x, length) {
  let largest = -Infinity, sum = 0;
  for (let i = 0; i < length; i++) largest = Math.max(largest, x[i]);
  for (let i = 0; i < length; i++) sum += x[i] = Math.exp(x[i] - largest);
  for (let i = 0; i < length; i++) x[i] /= sum;
  return x;
}

class Model {
  constructor(config, base64) {
    this.config = config;
    this.weights = unpack(config, base64);
    this.scores = new Float64Array(config.block_size);
  }

  // For each layer, one row of keys and one of values for each position.
  emptyCache() {
    const { n_layer, block_size, n_embd } = this.config;
    const rows = () => Array.from({ length: block_size }, () => new Float64Array(n_embd));
    return Array.from({ length: n_layer }, () => ({ keys: rows(), values: rows() }));
  }

  // The logits of one token at one position; its keys and values go into the cache.
  logits(token, position, cache) {
    const C = this.config.n_embd, w = this.weights;
    const x = new Float64Array(C), add = (y) => y.forEach((value, i) => (x[i] += value));
    for (let i = 0; i < C; i++) x[i] = w.tokens[token * C + i] + w.positions[position * C + i];
    w.blocks.forEach((block, layer) => {
      const qkv = multiply(block.qkv, normalise(block.ln1, x), new Float64Array(3 * C));
      cache[layer].keys[position].set(qkv.subarray(C, 2 * C));
      cache[layer].values[position].set(qkv.subarray(2 * C));
      const mixed = this.attend(qkv, cache[layer], position);
      add(multiply(block.proj, mixed, new Float64Array(C)));
      const hidden = multiply(block.into, normalise(block.ln2, x), new Float64Array(4 * C));
      for (let i = 0; i < 4 * C; i++) hidden[i] = Math.max(hidden[i], 0);
      add(multiply(block.back, hidden, new Float64Array(C)));
    });
    return multiply(w.lm_head, normalise(w.ln_f, x), new Float64Array(this.config.vocab_size));
  }

  // softmax(q kᵀ / √hs) v of every head, over the keys at 0 … position.
  attend(q, { keys, values }, position) {
    const { n_embd: C, n_head: H } = this.config, hs = C / H;
    const scores = this.scores, out = new Float64Array(C);
    for (let from = 0; from < C; from += hs) {
      for (let s = 0; s <= position; s++) {
        let dot = 0;
        for (let i = from; i < from + hs; i++) dot += q[i] * keys[s][i];
        scores[s] = dot / Math.sqrt(hs);
      }
      softmax(scores, position + 1);
      for (let s = 0; s <= position; s++) {
        for (let i = from; i < from + hs; i++) out[i] += scores[s] * values[s][i];
      }
    }
    return out;
  }
}

// generate(): call next() for each new token. Without a cache every step reads the whole text.
class Decoding {
  constructor(model, prompt, seed, temperature, cached) {
    Object.assign(this, { model, temperature, cached, text: [...prompt], computed: 0, first: 0 });
    this.noise = noiseOf(seed, model.config.vocab_size);
    this.cache = model.emptyCache();
    this.fresh = 0; // the first position that no step has read
  }

  next() {
    let logits;
    this.first = this.cached ? this.fresh : 0;
    for (let position = this.first; position < this.text.length; position++) {
      logits = this.model.logits(this.text[position], position, this.cache);
      this.computed++;
    }
    this.fresh = this.text.length;
    const probs = softmax(logits.map((x) => x / this.temperature), logits.length);
    const noise = this.noise();
    let best = 0;
    for (let i = 1; i < probs.length; i++) if (probs[i] / noise[i] > probs[best] / noise[best]) best = i;
    this.text.push(best);
    return best;
  }
}
