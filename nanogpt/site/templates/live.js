// The page around the model: two lanes that share one core fairly, a head of the newer one, and a form.
const LIVE = JSON.parse(document.getElementById("live").textContent);
const MODEL = new Model(LIVE.config, LIVE.weights);
const SLIDERS = ["temperature", "topK", "topP"];
const at = (id) => document.getElementById(id);
const number = (x) => Math.round(x).toLocaleString("en");
const short = (x) => x.toLocaleString("en", { maximumSignificantDigits: 2 });
const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
const strip = location.hash === "#strip";

function encode(text) {
  const tokens = [...text].map((c) => LIVE.vocabulary.indexOf(c));
  const unknown = [...new Set([...text].filter((_, i) => tokens[i] < 0))];
  if (!unknown.length) return tokens;
  const known = [...LIVE.vocabulary.replace("\n", "").trim()];
  const shown = unknown.map((c) => (/[\p{L}\p{N}\p{P}\p{S}]/u.test(c) ? c : `U+${c.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`));
  const more = shown.length > 10 ? ` and ${shown.length - 10} more` : "";
  const range = `line ends, spaces and ${known.length} characters from ${known[0]} to ${known.at(-1)}`;
  throw new Error(`The model never saw ${shown.slice(0, 10).join(" ")}${more} in training. It knows ${range}`);
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
  if (!prompt) throw new Error("The prompt is empty: the model needs at least one character to continue.");
  const tokens = encode(prompt);
  const { block_size } = LIVE.config;
  if (tokens.length > block_size) throw new Error(`The prompt has ${tokens.length} characters, but the model reads at most ${block_size}.`);
  const length = Math.round(field("length", 1, LIVE.longest, "The number of new characters"));
  const seed = Math.floor(field("seed", 0, 2 ** 32 - 1, "The seed"));
  const sampling = Object.fromEntries(SLIDERS.map((id) => [id, Number(at(id).value)]));
  const fault = document.querySelector("[name=fault]:checked").value;
  return { prompt, tokens, seed, length, sampling, fault };
}

function python({ prompt, seed, length, sampling: { temperature, topK, topP } }) {
  const more = (topK < LIVE.config.vocab_size ? `, top_k=${topK}` : "") + (topP < 1 ? `, top_p=${topP}` : "");
  return `prompt = saved.tokenizer.encode(${JSON.stringify(prompt)})[None]
sampling = SamplingParams(temperature=${temperature}${more})
seed = torch.Generator().manual_seed(${seed})
tokens = complete(model, prompt, ${length}, sampling, cache=RollingCache, generator=seed)`;
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
  const clear = (left, top, right, bottom) => context.clearRect(Math.round(left), Math.round(top), Math.round(right) - Math.round(left), Math.round(bottom) - Math.round(top));
  return { width, height, fill, clear };
}

// How fine the clock of the browser is: some tick only once in a millisecond. One that stands still tells nothing.
function tick() {
  const start = performance.now();
  for (let i = 0; i < 1e7; i++) {
    const now = performance.now();
    if (now > start) return now - start;
  }
  return Infinity;
}
const SHORTEST = 10 * Math.min(tick(), tick(), tick());

// The milliseconds of a step: their median, and the two ends of their middle half. The first is left out, as it
// reads the prompt both ways; neighbours that are too short for the clock are timed together.
function pace(steps) {
  const each = [];
  let group = [];
  for (const ms of steps.slice(1)) {
    group.push(ms);
    const sum = group.reduce((a, b) => a + b);
    if (sum < SHORTEST) continue;
    for (const _ of group) each.push(sum / group.length);
    group = [];
  }
  each.sort((a, b) => a - b);
  const [low, median, high] = [0.25, 0.5, 0.75].map((share) => {
    const at = share * (each.length - 1);
    const under = Math.floor(at);
    return each[under] + (at - under) * (each[Math.ceil(at)] - each[under]);
  });
  return { low, median, high, n: each.length };
}

// One way to decode: its text, its clock and its picture. Only its own steps are timed.
class Lane {
  constructor(id, cached) {
    Object.assign(this, { box: at(id), cached, decoding: null });
    this.part = (name) => this.box.querySelector(`.${name}`);
    this.code = this.part("code");
  }

  begin({ tokens, seed, length, sampling, fault }) {
    this.decoding = new Decoding(MODEL, tokens, seed, sampling, this.cached, this.cached ? fault : "");
    Object.assign(this, { prompt: tokens.length, total: tokens.length + length, ms: 0, steps: [], begun: null });
    this.letters = []; // an element for each character of the text that is drawn
    for (const name of ["prompted", "written"]) this.part(name).replaceChildren();
  }

  get done() {
    return !this.decoding || this.decoding.text.length === this.total;
  }

  get written() {
    return decode(this.decoding.text.slice(this.prompt));
  }

  // How many positions its first steps have read.
  read(steps) {
    return this.decoding.reads.slice(0, steps).reduce((a, b) => a + b, 0);
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

  draw(right, equal) {
    const { text } = this.decoding;
    for (const token of text.slice(this.letters.length)) {
      const part = this.letters.length < this.prompt ? "prompted" : "written";
      this.letters.push(this.part(part).appendChild(letter(token)));
    }
    const [first, ...others] = differences(this.written, right).places;
    if (first !== undefined) this.letters[this.prompt + first].classList.add("first");
    for (const i of others) this.letters[this.prompt + i].classList.add("off");
    if (shown()?.lane !== this) this.scroll(this.letters[this.prompt + first]);
    const { median, n } = pace(this.steps.slice(0, equal));
    this.part("rate").textContent = n ? `${number(1000 / median)} tokens a second` : "";
    this.part("count").textContent = this.count;
    this.drawCells();
  }

  // This character in view, or the end.
  scroll(letter) {
    this.code.scrollTop = letter ? letter.offsetTop - this.code.offsetTop - 2 * letter.offsetHeight : this.code.scrollHeight;
  }

  get count() {
    const written = this.steps.length;
    const read = this.read(written);
    const said = `${written} of ${this.total - this.prompt} characters, ${number(read)} positions computed`;
    if (strip || this.cached || !running || this.done || !written) return said;
    const upTo = (length) => (length * (length - 1)) / 2; // positions read for a text of that length, from none
    const seconds = ((upTo(this.total) - upTo(this.decoding.text.length)) * this.ms) / read / 1000;
    return seconds < 5 ? said : `${said}, about ${number(seconds)} s more`;
  }

  // A column for each position, a row for each head of each layer: its keys and its values. A ring
  // keeps those of the last block_size positions.
  drawCells() {
    const { width, height, fill, clear } = board(this.part("cells")), rows = LIVE.config.n_layer * LIVE.config.n_head;
    const columns = this.total - 1, [wide, high] = [width / columns, height / rows], { start, fresh } = this.decoding;
    const forgotten = Math.max(0, fresh - LIVE.config.block_size);
    const parts = { line: [0, columns], kept: [Math.min(forgotten, start), start], now: [start, fresh] };
    for (let row = 0; row < rows; row++) {
      for (const [colour, [from, to]] of Object.entries(parts)) {
        if (from < to) fill(colour, from * wide, row * high, to * wide, (row + 1) * high - 1);
      }
    }
    for (let column = 1; wide >= 3 && column <= columns; column++) clear(column * wide - 1, 0, column * wide, height);
  }
}

const LANES = [new Lane("plain", false), new Lane("cached", true)];
let running = 0; // the number of the run that goes on; 0 when none does

// Where two texts differ, as far as both are written.
function differences(text, right) {
  const length = Math.min(text.length, right.length);
  const places = [...Array(length).keys()].filter((i) => text[i] !== right[i]);
  return { places, length };
}

// The element of a character. A line end is marked, so that it can be pointed at.
function letter(token) {
  const character = LIVE.vocabulary[token];
  return Object.assign(document.createElement("span"), { textContent: character, className: character === "\n" ? "end" : "" });
}

const FEWEST = 10; // steps from which the page says how much faster one way is

function report() {
  const [plain, cached] = LANES, { places, length } = differences(cached.written, plain.written);
  const what = at("result"), { fault } = cached.decoding;
  if (places.length) {
    const strong = Object.assign(document.createElement("strong"), { textContent: `${places.length} of ${length} characters differ, from character ${places[0] + 1}.` });
    what.replaceChildren(strong, fault ? "" : " That is our bug: please report it with your prompt and seed.");
  } else if (running || !length) {
    what.textContent = "";
  } else if (fault) {
    what.textContent = `All ${length} characters are equal this time. The cache is still broken: try another seed or a longer prompt.`;
  } else if (length === 1) {
    what.textContent = "The same character. The first step has nothing cached yet: both paths read the whole prompt.";
  } else {
    what.textContent = `The same ${length} characters. ${compared(length)}`;
  }
}

// Both ways over the same characters: their median steps, and the positions that they read.
function compared(length) {
  const [plain, cached] = LANES.map((lane) => pace(lane.steps.slice(0, length)));
  if (Math.min(plain.n, cached.n) < FEWEST) return "Too few steps to say how much faster the cache is: write more.";
  const much = (plain.median / cached.median).toFixed(1);
  const faster = `By the median of ${length - 1} steps, the cache’s speedup here was ${much}×`;
  if (strip) return `${faster}.`;
  const said = ({ median, low, high }) => `${short(median)} ms (middle half ${short(low)} to ${short(high)})`;
  const [all, few] = LANES.map((lane) => lane.read(length));
  const fewer = `In all, it computed ${(all / few).toFixed(1)} times fewer positions`;
  return `${faster}: ${said(cached)} instead of ${said(plain)}. ${fewer}. That is JavaScript in your browser; notebook 05 measures the speedup in Python.`;
}

function draw() {
  if (!LANES[0].decoding) return; // the form has asked for what cannot be since the page was opened
  const right = LANES[0].written;
  const equal = Math.min(...LANES.map((lane) => lane.steps.length));
  LANES.forEach((lane) => lane.draw(right, equal));
  if (!strip && isStepDue()) drawStep();
}

// The newest step is a large picture: while the lanes write it is drawn five times a second, and when the last has come.
function isStepDue() {
  const { decoding, done } = LANES[1];
  const row = decoding.rows?.at(-1);
  const now = performance.now();
  if (running && (row === isStepDue.row || (!done && now < isStepDue.next))) return false;
  Object.assign(isStepDue, { row, next: now + 200 });
  return true;
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
  at("highest").textContent = short(highest);
  at("chart").hidden = false;
}

function finish(how) {
  running = 0;
  at("stop").disabled = true;
  at("status").textContent = LANES.every((lane) => lane.done) ? "Done." : how;
  if (LANES[0].steps.length > 1) drawTimes();
  draw();
  report();
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
  if (wrote && left && steps === Infinity) {
    draw();
    report();
  }
  if (left) setTimeout(() => go(run, slowly, steps), pause);
  else finish("A still image, because your system asks for reduced motion. “Write” writes the whole text.");
}

const PRESET = ["prompt", "seed", "length"]; // what a preset sets; it also puts the sliders back

// The number beside each slider, and which preset the form holds.
function label() {
  for (const id of SLIDERS) at(id).labels[0].querySelector("output").textContent = Number(at(id).value) < at(id).max || id === "temperature" ? at(id).value : "all";
  for (const button of at("presets").querySelectorAll("button")) {
    const holds = PRESET.every((id) => at(id).value === button.dataset[id]) && SLIDERS.every((id) => at(id).value === at(id).defaultValue);
    button.setAttribute("aria-pressed", holds);
  }
}

function preset({ dataset }) {
  for (const id of SLIDERS) at(id).value = at(id).defaultValue;
  for (const id of PRESET) at(id).value = dataset[id];
  show();
}

// Reads the form and puts both lanes at the prompt; false where the form asks for what cannot be.
function prepare() {
  running = 0;
  at("error").textContent = at("result").textContent = at("status").textContent = "";
  at("stop").disabled = true;
  label();
  release();
  point(null);
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
for (const button of at("presets").querySelectorAll("button")) button.addEventListener("click", () => preset(button));
for (const id of ["layer", "head"]) {
  at(id).addEventListener("change", () => {
    draw();
    drawLook();
  });
}
at("before").addEventListener("click", () => move(-1));
at("after").addEventListener("click", () => move(1));
at("own").addEventListener("click", () => at("prompt").select());
if (!strip) LANES.forEach(watch);
for (const part of [at("faults"), at("settings"), at("slowly")]) part.addEventListener("change", show);
for (const watched of [matchMedia("(prefers-color-scheme: dark)"), matchMedia("(max-width: 38rem)")]) watched.addEventListener("change", draw);

document.documentElement.classList.toggle("strip", strip);
at("form").hidden = false;
if (location.hash !== "#token") show(); // the index has a frame for that part alone
