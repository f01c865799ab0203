// The page around the model: two lanes that share one core fairly, a head of the newer one, and a form.
const LIVE = JSON.parse(document.getElementById("live").textContent);
const MODEL = new Model(LIVE.config, LIVE.weights);
const SLIDERS = ["temperature", "topK", "topP"];
const at = (id) => document.getElementById(id);
const number = (x) => Math.round(x).toLocaleString("en");
const still = matchMedia("(prefers-reduced-motion: reduce)").matches;

function encode(text) {
  const tokens = [...text].map((c) => LIVE.vocabulary.indexOf(c));
  const unknown = [...new Set([...text].filter((_, i) => tokens[i] < 0))];
  if (!unknown.length) return tokens;
  const known = LIVE.vocabulary.replace("\n", "").trim();
  const shown = unknown.map((c) => (/[\p{L}\p{N}\p{P}\p{S}]/u.test(c) ? c : `U+${c.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`));
  throw new Error(`The model never saw ${shown.join(" ")} in training. It knows line ends, spaces and ${known}`);
}
const decode = (tokens) => tokens.map((token) => LIVE.vocabulary[token]).join("");

// What Python's generate writes with the same weights, for the tests and for the console.
function write(prompt, seed, length, { temperature = 1, topK = Infinity, topP = 1 } = {}, cached = true, fault = "") {
  const decoding = new Decoding(MODEL, encode(prompt), seed, { temperature, topK, topP }, cached, fault);
  for (let i = 0; i < length; i++) decoding.next();
  return decode(decoding.text);
}

function readForm() {
  const field = (id, low, high, what) => {
    const value = Number(at(id).value);
    if (at(id).value === "" || !(value >= low && value <= high)) throw new Error(`${what} must be from ${low} to ${high.toLocaleString("en")}.`);
    return value;
  };
  const prompt = at("prompt").value.replaceAll("\r\n", "\n");
  if (!prompt) throw new Error("The prompt is empty: the model needs at least one character to go on from.");
  const tokens = encode(prompt), room = LIVE.config.block_size + 1 - tokens.length;
  if (room < 1) throw new Error(`The prompt has ${tokens.length} characters. The model reads at most ${LIVE.config.block_size}.`);
  const asked = Math.round(field("length", 1, LIVE.config.block_size, "The number of new characters"));
  const seed = Math.floor(field("seed", 0, 2 ** 32 - 1, "The seed"));
  const sampling = Object.fromEntries(SLIDERS.map((id) => [id, Number(at(id).value)]));
  const fault = document.querySelector("[name=fault]:checked").value;
  return { prompt, tokens, seed, length: Math.min(asked, room), full: asked > room, sampling, fault };
}

function python({ prompt, seed, length, sampling: { temperature, topK, topP } }) {
  const more = (topK < LIVE.config.vocab_size ? `, top_k=${topK}` : "") + (topP < 1 ? `, top_p=${topP}` : "");
  return `prompt = saved.tokenizer.encode(${JSON.stringify(prompt)})[None]
sampling = SamplingParams(temperature=${temperature}${more})
seed = torch.Generator().manual_seed(${seed})
tokens = complete(model, prompt, ${length}, sampling, generator=seed)`;
}

// A canvas of the size that it has on the screen, empty; its colours; and how to fill a part of it.
function board(canvas) {
  const look = getComputedStyle(canvas), context = canvas.getContext("2d");
  const [width, height] = [canvas.clientWidth * devicePixelRatio, canvas.clientHeight * devicePixelRatio];
  Object.assign(canvas, { width, height });
  const colours = Object.fromEntries(["now", "kept", "line"].map((name) => [name, look.getPropertyValue(`--${name}`)]));
  const fill = (colour, left, top, right, bottom, strength = 1) => {
    context.fillStyle = colours[colour];
    context.globalAlpha = strength;
    context.fillRect(Math.round(left), Math.round(top), Math.max(1, Math.round(right) - Math.round(left)), Math.round(bottom) - Math.round(top));
  };
  return { width, height, fill };
}

// One way to decode: its text, its clock and its picture. Only its own steps are timed.
class Lane {
  constructor(id, cached) {
    Object.assign(this, { box: at(id), cached, decoding: null });
    this.part = (name) => this.box.querySelector(`.${name}`);
  }

  begin({ tokens, seed, length, full, sampling, fault }) {
    this.decoding = new Decoding(MODEL, tokens, seed, sampling, this.cached, this.cached ? fault : "");
    Object.assign(this, { prompt: tokens.length, total: tokens.length + length, full, ms: 0, steps: [], begun: null });
  }

  get done() {
    return !this.decoding || this.decoding.text.length === this.total;
  }

  get written() {
    return decode(this.decoding.text.slice(this.prompt));
  }

  get rate() {
    return this.steps.length / ((this.ms - (this.begun?.ms ?? 0)) / 1000);
  }

  // Goes on with a step until it is whole, or until that time: without a cache, a step of a long text
  // takes longer than a page may stand still. Returns whether it is whole.
  work(end = Infinity) {
    this.begun ??= { step: this.decoding.step(), ms: 0 };
    const start = performance.now();
    let now, done;
    do {
      ({ done } = this.begun.step.next());
      now = performance.now();
    } while (!done && now < end);
    this.begun.ms += now - start;
    this.ms += now - start;
    if (!done) return false;
    this.steps.push(this.begun.ms);
    this.begun = null;
    return true;
  }

  draw(right) {
    this.part("prompted").textContent = decode(this.decoding.text.slice(0, this.prompt));
    this.part("written").replaceChildren(...marked(this.written, right));
    const code = this.part("code"), first = this.part("first"); // in view: the first mistake, else the end
    code.scrollTop = first ? first.offsetTop - code.offsetTop - 2 * first.offsetHeight : code.scrollHeight;
    this.part("rate").textContent = this.steps.length ? `${number(this.rate)} tokens a second` : "";
    this.part("count").textContent = `${this.steps.length} of ${this.total - this.prompt} characters, ${number(this.decoding.computed)} positions read`;
    this.drawCells();
  }

  // A column for each position, a row for each head of each layer: its keys and its values.
  drawCells() {
    const { width, height, fill } = board(this.part("cells")), rows = LIVE.config.n_layer * LIVE.config.n_head;
    const columns = this.total - 1, [wide, high] = [width / columns, height / rows], gap = wide < 3 ? 0 : 1;
    for (let column = 0; column < columns; column++) {
      const read = column < this.decoding.fresh, now = read && column >= this.decoding.first;
      for (let row = 0; row < rows; row++) {
        fill(now ? "now" : read ? "kept" : "line", column * wide, row * high, (column + 1) * wide - gap, (row + 1) * high - 1);
      }
    }
  }
}

const LANES = [new Lane("plain", false), new Lane("cached", true)];
let running = 0; // the number of the run that goes on; 0 when none does

// Where two texts differ, as far as both are written: the first place, counted from 1, and how many.
function differences(text, right) {
  const length = Math.min(text.length, right.length);
  const places = [...Array(length).keys()].filter((i) => text[i] !== right[i]);
  return { first: places[0] + 1, many: places.length, length };
}

// The text in pieces: the first character that differs from the right text is marked, then all others.
function marked(text, right) {
  const pieces = [];
  let first = true;
  for (let i = 0; i < text.length; i++) {
    const off = i < right.length && text[i] !== right[i], kind = !off ? "" : first ? "first" : "off";
    const shown = kind && text[i] === "\n" ? "↵\n" : text[i];
    first &&= !off;
    if (pieces.at(-1)?.className === kind && kind !== "first") pieces.at(-1).textContent += shown;
    else pieces.push(Object.assign(document.createElement(kind === "first" ? "mark" : "span"), { className: kind, textContent: shown }));
  }
  return pieces;
}

function report(end) {
  const [plain, cached] = LANES, { first, many, length } = differences(cached.written, plain.written);
  const what = at("result"), { fault } = cached.decoding;
  if (many) {
    const strong = Object.assign(document.createElement("strong"), { textContent: `${many} of ${length} characters differ, from character ${first}.` });
    what.replaceChildren(strong, fault ? "" : " That is a mistake of ours: please report it, with your prompt and your seed.");
  } else if (!end) {
    what.textContent = "";
  } else if (fault) {
    what.textContent = `None of ${length} characters differs, this time. The cache is broken all the same: try another seed or a longer prompt.`;
  } else if (plain.steps.length === 1) {
    what.textContent = "The same character. The first step has nothing to keep: both ways read the whole prompt.";
  } else {
    const much = (cached.rate / plain.rate).toFixed(1), less = (plain.decoding.computed / cached.decoding.computed).toFixed(1);
    what.textContent = `The same text, to the character. With the cache it came ${much} times as fast here, from ${less} times fewer positions.`;
  }
}

// The head that the reader picks, in the newest step with a cache: its query, the keys, their weights.
function drawHead() {
  const { decoding } = LANES[1], { n_embd, n_head } = LIVE.config, hs = n_embd / n_head;
  const [layer, head] = [Number(at("layer").value), Number(at("head").value)], from = head * hs;
  const row = decoding.rows?.at(-1);
  for (const id of ["heat", "seen"]) at(id).hidden = !row;
  if (!row) return [at("query"), at("keys")].forEach(board);
  const query = row.queries[layer], { keys } = decoding.cache[layer], weights = MODEL.share(query, keys, head, row.last).slice(0, row.last + 1);
  const isNew = (slot) => decoding.rows.some((each) => each.slot === slot);
  const used = keys.slice(0, row.last + 1).map((key) => key.subarray(from, from + hs)), own = query.subarray(from, from + hs);
  const left = board(at("query")), right = board(at("keys")), high = (right.height * 0.66) / hs, wide = right.width / used.length;
  const cells = ({ fill }, colour, numbers, x, end) => {
    const most = Math.max(...numbers.map(Math.abs));
    numbers.forEach((value, i) => fill(colour, x, i * high, end, (i + 1) * high, 0.06 + 0.94 * ((value / most + 1) / 2) ** 2));
  };
  cells(left, "now", own, 0, left.width);
  const most = Math.max(...weights), floor = right.height, gap = wide < 4 ? 0 : 1;
  used.forEach((key, slot) => {
    const colour = isNew(slot) ? "now" : "kept", [x, end] = [slot * wide, (slot + 1) * wide - gap];
    cells(right, colour, key, x, end);
    right.fill(colour, x, floor - (floor * 0.3 * weights[slot]) / most, end, floor);
  });
  explain(decoding, row, weights, isNew, 2 * hs);
}

// The text with the weight of each token behind it, and the step in words.
function explain({ text, rows }, row, weights, isNew, numbers) {
  // In the slots stand the first tokens of the text; a broken cache keeps writing into one of them.
  const tokens = [...weights].map((_, slot) => (slot === row.slot ? row.token : text[slot])), most = Math.max(...weights);
  const name = (token) => (token === undefined ? "" : LIVE.vocabulary[token].replace("\n", "↵"));
  at("heat").replaceChildren(...tokens.map((token, slot) => {
    const piece = Object.assign(document.createElement("span"), { textContent: name(token), className: slot === row.slot ? "new" : "" });
    piece.style.background = `color-mix(in srgb, var(--${isNew(slot) ? "now" : "kept"}) ${Math.round((60 * weights[slot]) / most)}%, transparent)`;
    return piece;
  }));
  const top = weights.indexOf(most), heads = LIVE.config.n_layer * LIVE.config.n_head;
  at("seen").textContent = `The newest token that was read is “${name(row.token)}” at position ${row.position}. Its query meets ${weights.length} keys. Most weight, ${Math.round(100 * most)}%, goes to “${name(tokens[top])}”. Written in this step: ${rows.length === 1 ? "one key and one value" : `${rows.length} keys and ${rows.length} values`}, ${number(rows.length * numbers)} numbers; for all ${heads} heads ${number(rows.length * numbers * heads)}.`;
}

function draw() {
  if (!LANES[0].decoding) return; // the form has asked for what cannot be since the page was opened
  const right = LANES[0].written;
  LANES.forEach((lane) => lane.draw(right));
  if (!document.documentElement.classList.contains("strip")) drawHead();
}

// The milliseconds of each step over the length of the text, one line for each lane.
function drawTimes() {
  const highest = Math.max(...LANES.flatMap((lane) => lane.steps)), box = at("times");
  const [width, height, side] = [600, 150, 40];
  for (const { steps, total, prompt, box: { id } } of LANES) {
    const x = (i) => side + ((width - side) * (i + 0.5)) / (total - prompt);
    const points = steps.map((ms, i) => `${x(i).toFixed(1)},${(height - (height * ms) / highest).toFixed(1)}`);
    box.querySelector(`.${id}`).setAttribute("points", points.join(" "));
  }
  at("highest").textContent = highest.toLocaleString("en", { maximumSignificantDigits: 2 });
  at("chart").hidden = false;
}

function finish(how) {
  running = 0;
  at("stop").disabled = true;
  const end = LANES.every((lane) => lane.done), full = LANES[0].full ? ` The model’s context of ${LIVE.config.block_size} characters is full.` : "";
  at("status").textContent = end ? `Done.${full}` : how;
  if (LANES[0].steps.length > 1) drawTimes();
  report(end);
}

// Both lanes get the same share of the core: the one that has used less of it goes on. In slow motion
// they take their steps in turns. A still is drawn once, when both have taken as many steps as it shows.
function go(run, slowly, steps) {
  if (run !== running) return;
  const end = performance.now() + 20, used = (lane) => (slowly ? lane.steps.length : lane.ms);
  const behind = () => LANES.filter((lane) => !lane.done && lane.steps.length < steps);
  let wrote = false, pause = 0;
  while (behind().length && !pause && performance.now() < end) {
    const whole = behind().reduce((a, b) => (used(b) < used(a) ? b : a)).work(end);
    wrote ||= whole;
    if (slowly && whole && LANES[0].steps.length === LANES[1].steps.length) pause = 250;
  }
  const left = behind().length;
  if (wrote && (steps === Infinity || !left)) {
    draw();
    report(false);
  }
  if (left) setTimeout(() => go(run, slowly, steps), pause);
  else finish("A still, as your system asks for less motion. “Write” writes the whole text.");
}

// The number beside each slider.
function label() {
  for (const id of SLIDERS) at(id).labels[0].querySelector("output").textContent = Number(at(id).value) < at(id).max || id === "temperature" ? at(id).value : "all";
}

// Reads the form and puts both lanes at the prompt; false where the form asks for what cannot be.
function prepare() {
  running = 0;
  at("error").textContent = at("result").textContent = at("status").textContent = "";
  at("stop").disabled = true;
  label();
  at("what").textContent = document.querySelector("[name=fault]:checked").parentElement.title;
  try {
    const asked = readForm();
    LANES.forEach((lane) => lane.begin(asked));
    at("python").textContent = python(asked);
  } catch (error) {
    at("error").textContent = error.message;
    return false;
  }
  at("chart").hidden = true;
  draw();
  return true;
}

function start(steps = Infinity) {
  if (!prepare()) return;
  at("stop").disabled = false;
  at("status").textContent = "Writing …";
  running = ++start.count;
  go(running, steps === Infinity && at("slowly").checked, steps);
}
start.count = 0;

function oneStep() {
  if (running) finish("Stopped.");
  if (LANES.every((lane) => lane.done) && !prepare()) return;
  LANES.filter((lane) => !lane.done).forEach((lane) => lane.work());
  draw();
  finish(`Step ${LANES[0].steps.length}.`);
}

// Writes; where motion is unwanted, a still of the first characters, until the reader presses a button.
const show = () => start(still ? 40 : Infinity);

at("form").addEventListener("submit", (event) => {
  event.preventDefault();
  start();
});
at("step").addEventListener("click", oneStep);
at("stop").addEventListener("click", () => finish("Stopped."));
at("settings").addEventListener("input", label);
for (const id of ["layer", "head"]) at(id).addEventListener("change", draw);
for (const part of [at("faults"), at("settings"), at("slowly")]) part.addEventListener("change", show);
for (const watched of [matchMedia("(prefers-color-scheme: dark)"), matchMedia("(max-width: 38rem)")]) watched.addEventListener("change", draw);

document.documentElement.classList.toggle("strip", location.hash === "#strip");
at("form").hidden = false;
show();
