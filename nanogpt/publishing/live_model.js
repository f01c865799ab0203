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

  // The logits after the last row. A row {token, position, slot, last} writes its keys and values
  // into its slot of the cache and looks at the slots 0 … last. With `drop`, dropout is on.
  logits(rows, cache, drop) {
    const C = this.config.n_embd, w = this.weights;
    const keep = (y) => (drop ? y.map((value) => value * drop()) : y);
    const xs = rows.map(({ token, position }) =>
      Float64Array.from({ length: C }, (_, i) => w.tokens[token * C + i] + w.positions[position * C + i]));
    const add = (row, y) => keep(y).forEach((value, i) => (xs[row][i] += value));
    w.blocks.forEach((block, layer) => {
      const here = cache[layer];
      const qkv = xs.map((x) => multiply(block.qkv, normalise(block.ln1, x), new Float64Array(3 * C)));
      rows.forEach(({ slot }, row) => {
        here.keys[slot].set(qkv[row].subarray(C, 2 * C));
        here.values[slot].set(qkv[row].subarray(2 * C));
      });
      here.query = qkv.at(-1).subarray(0, C); // of the newest token: the page shows it
      rows.forEach(({ last }, row) => {
        add(row, multiply(block.proj, this.attend(qkv[row], here, last, drop), new Float64Array(C)));
        const hidden = multiply(block.into, normalise(block.ln2, xs[row]), new Float64Array(4 * C));
        for (let i = 0; i < 4 * C; i++) hidden[i] = Math.max(hidden[i], 0);
        add(row, multiply(block.back, hidden, new Float64Array(C)));
      });
    });
    return multiply(w.lm_head, normalise(w.ln_f, xs.at(-1)), new Float64Array(this.config.vocab_size));
  }

  // softmax(q kᵀ / √hs) of one head over the slots 0 … last, in an array that the next call uses again.
  share(q, keys, head, last) {
    const hs = this.config.n_embd / this.config.n_head, from = head * hs;
    for (let s = 0; s <= last; s++) {
      let dot = 0;
      for (let i = from; i < from + hs; i++) dot += q[i] * keys[s][i];
      this.scores[s] = dot / Math.sqrt(hs);
    }
    return softmax(this.scores, last + 1);
  }

  // What every head mixes of the values.
  attend(q, { keys, values }, last, drop) {
    const { n_embd: C, n_head: H } = this.config, hs = C / H, out = new Float64Array(C);
    for (let head = 0; head < H; head++) {
      const weights = this.share(q, keys, head, last), from = head * hs;
      for (let s = 0; s <= last; s++) {
        const weight = drop ? weights[s] * drop() : weights[s];
        for (let i = from; i < from + hs; i++) out[i] += weight * values[s][i];
      }
    }
    return out;
  }
}

// sample(): the token that wins the race, of the topK likeliest that reach topP together.
function sample(logits, noise, { temperature, topK, topP }) {
  const probs = softmax(logits.map((x) => x / temperature), logits.length);
  const order = [...probs.keys()].sort((a, b) => probs[b] - probs[a] || a - b);
  const weakest = probs[order[Math.min(topK, probs.length) - 1]];
  for (let i = 0; i < probs.length; i++) if (probs[i] < weakest) probs[i] = 0;
  const sum = order.reduce((sum, i) => sum + probs[i], 0);
  let reached = 0;
  for (const i of topP < 1 ? order : []) {
    const share = probs[i] / sum;
    reached += share;
    if (reached - share >= topP) probs[i] = 0;
  }
  let best = 0;
  for (let i = 1; i < probs.length; i++) if (probs[i] / noise[i] > probs[best] / noise[best]) best = i;
  return best;
}

// What a bug changes in the rows of one step: a prefill, or a decode step after `prompt` tokens.
const FAULTS = {
  position: (row, prefill) => (prefill ? row : { ...row, position: 0 }),
  mask: (row, prefill, prompt) => (prefill ? { ...row, last: prompt - 1 } : row),
  append: (row, prefill, prompt) => (prefill ? row : { ...row, slot: prompt, last: prompt }),
  dropout: (row) => row,
};
const DROPPED = 0.2; // the lecture's rate

// generate(): call next() for each new token. Without a cache every step reads the whole text.
class Decoding {
  constructor(model, prompt, seed, sampling, cached, fault = "") {
    Object.assign(this, { model, sampling, cached, fault, prompt: prompt.length, text: [...prompt] });
    this.noise = noiseOf(seed, model.config.vocab_size);
    this.cache = model.emptyCache();
    this.computed = this.first = this.fresh = 0; // fresh: the first position that no step has read
    const bits = mersenne(seed);
    if (fault === "dropout") this.drop = () => (bits() < DROPPED * 2 ** 32 ? 0 : 1 / (1 - DROPPED));
  }

  next() {
    this.first = this.cached ? this.fresh : 0;
    const change = FAULTS[this.fault] ?? ((row) => row), prefill = this.fresh === 0;
    this.rows = this.text.slice(this.first).map((token, i) => {
      const at = this.first + i;
      return change({ token, position: at, slot: at, last: at }, prefill, this.prompt);
    });
    this.computed += this.rows.length;
    this.fresh = this.text.length;
    const logits = this.model.logits(this.rows, this.cache, this.drop);
    this.text.push(sample(logits, this.noise(), this.sampling));
  }
}
