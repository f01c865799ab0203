// The page around the model: a form, two lanes that share one core fairly, and their caches as pictures.
const LIVE = JSON.parse(document.getElementById("live").textContent);
const MODEL = new Model(LIVE.config, LIVE.weights);
const at = (id) => document.getElementById(id);
const number = (x) => Math.round(x).toLocaleString("en");

function encode(text) {
  const tokens = [...text].map((c) => LIVE.vocabulary.indexOf(c));
  const unknown = [...new Set([...text].filter((_, i) => tokens[i] < 0))];
  if (!unknown.length) return tokens;
  const known = LIVE.vocabulary.replace("\n", "").trim();
  throw new Error(`The model never saw ${unknown.join(" ")} in training. It knows line ends, spaces and ${known}`);
}
const decode = (tokens) => tokens.map((token) => LIVE.vocabulary[token]).join("");

// What Python's generate writes with the same weights, for the tests and for the console.
function write(prompt, seed, length, temperature, cached) {
  const decoding = new Decoding(MODEL, encode(prompt), seed, temperature, cached);
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
  return { tokens, seed, length: Math.min(asked, room), temperature: field("temperature", 0.01, 10, "The temperature") };
}

// One way to decode: its text, its clock and its picture. Only its own steps are timed.
class Lane {
  constructor(id, cached) {
    Object.assign(this, { box: at(id), cached, decoding: null });
    this.part = (name) => this.box.querySelector(`.${name}`);
  }

  begin({ tokens, seed, length, temperature }) {
    this.decoding = new Decoding(MODEL, tokens, seed, temperature, this.cached);
    Object.assign(this, { prompt: tokens.length, total: tokens.length + length, ms: 0, steps: [] });
    this.draw();
  }

  get done() {
    return !this.decoding || this.decoding.text.length === this.total;
  }

  step() {
    const start = performance.now();
    this.decoding.next();
    this.steps.push(performance.now() - start);
    this.ms += this.steps.at(-1);
  }

  get rate() {
    return this.steps.length / (this.ms / 1000);
  }

  draw() {
    const text = decode(this.decoding.text);
    this.part("prompted").textContent = text.slice(0, this.prompt);
    this.part("written").textContent = text.slice(this.prompt);
    this.part("rate").textContent = this.ms ? `${number(this.rate)} tokens a second` : "";
    this.part("count").textContent = `${this.steps.length} of ${this.total - this.prompt} characters, ${number(this.decoding.computed)} positions computed`;
    this.drawCells();
  }

  // A column for each position, a row for each head of each layer: its keys and its values.
  drawCells() {
    const canvas = this.part("cells"), { n_layer, n_head } = LIVE.config, rows = n_layer * n_head;
    const look = getComputedStyle(this.box), colour = (name) => look.getPropertyValue(name);
    const columns = this.total - 1, context = canvas.getContext("2d");
    const size = { width: canvas.clientWidth * devicePixelRatio, height: canvas.clientHeight * devicePixelRatio };
    Object.assign(canvas, size); // which empties it, too
    const [wide, high] = [size.width / columns, size.height / rows], gap = wide < 3 ? 0 : 1;
    for (let column = 0; column < columns; column++) {
      const read = column < this.decoding.fresh, now = read && column >= this.decoding.first;
      context.fillStyle = colour(now ? "--now" : read ? "--kept" : "--line");
      for (let row = 0; row < rows; row++) {
        const [left, top] = [Math.round(column * wide), Math.round(row * high)];
        context.fillRect(left, top, Math.round((column + 1) * wide) - left - gap, Math.round((row + 1) * high) - top - 1);
      }
    }
  }
}

const LANES = [new Lane("plain", false), new Lane("cached", true)];
let running = 0; // the number of the run that goes on; 0 when none does

function report(lanes) {
  const [plain, cached] = lanes;
  at("result").textContent = "";
  if (lanes.length < 2) return;
  const same = decode(plain.decoding.text) === decode(cached.decoding.text);
  const much = (cached.rate / plain.rate).toFixed(1), less = number(plain.decoding.computed / cached.decoding.computed);
  at("result").textContent = same
    ? `The same text, to the character. With the cache it came ${much} times as fast on this machine, from ${less} times fewer positions.`
    : "The texts differ. That is a mistake of ours: please report it, with your prompt and your seed.";
}

// The milliseconds of each step over the length of the text, one line for each lane.
function drawTimes(lanes) {
  const highest = Math.max(...lanes.flatMap((lane) => lane.steps)), box = at("times");
  const [width, height, side] = [600, 150, 40];
  for (const lane of LANES) {
    const steps = lanes.includes(lane) ? lane.steps : [];
    const x = (i) => side + ((width - side) * (i + 0.5)) / (lane.total - lane.prompt);
    const points = steps.map((ms, i) => `${x(i).toFixed(1)},${(height - (height * ms) / highest).toFixed(1)}`);
    box.querySelector(`.${lane.box.id}`).setAttribute("points", points.join(" "));
  }
  at("highest").textContent = highest.toLocaleString("en", { maximumSignificantDigits: 2 });
  at("chart").hidden = false;
}

function finish(lanes, how) {
  running = 0;
  at("stop").disabled = true;
  at("status").textContent = how;
  const some = lanes.filter((lane) => lane.steps.length);
  if (some.length) drawTimes(some);
  if (lanes.every((lane) => lane.done)) report(lanes);
}

// Both lanes get the same share of the core: the one that has used less of it takes the next step.
function go(lanes, run, slowly) {
  if (run !== running) return;
  const end = performance.now() + 12;
  do {
    const left = lanes.filter((lane) => !lane.done);
    if (!left.length) break;
    if (slowly) left.forEach((lane) => lane.step());
    else left.reduce((a, b) => (b.ms < a.ms ? b : a)).step();
  } while (!slowly && performance.now() < end);
  lanes.forEach((lane) => lane.draw());
  if (lanes.every((lane) => lane.done)) finish(lanes, "Done.");
  else setTimeout(() => go(lanes, run, slowly), slowly ? 150 : 0);
}

function start() {
  let asked;
  at("error").textContent = at("result").textContent = "";
  try {
    asked = readForm();
  } catch (error) {
    at("error").textContent = error.message;
    return;
  }
  const which = document.querySelector("[name=cache]:checked").value;
  const lanes = LANES.filter((lane) => which === "both" || lane.box.id === which);
  for (const lane of LANES) lane.box.hidden = !lanes.includes(lane);
  lanes.forEach((lane) => lane.begin(asked));
  at("chart").hidden = true;
  at("stop").disabled = false;
  at("status").textContent = "Writing …";
  running = ++start.count;
  go(lanes, running, at("slowly").checked);
}
start.count = 0;

at("form").addEventListener("submit", (event) => {
  event.preventDefault();
  start();
});
at("stop").addEventListener("click", () => finish(LANES.filter((lane) => !lane.box.hidden), "Stopped."));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => LANES.forEach((lane) => lane.decoding && lane.drawCells()));
at("form").hidden = false;
