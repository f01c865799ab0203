// The path of a token through the model of this page: figures/token.js draws what live_model.js computes.
const ALONE = location.hash === "#token"; // in the frame of the index
const ROWS = 14; // tokens that the model reads in all: more rows would not fit a screen

// A text as the model writes it, with the trace of every row.
function storyOf(prompt, seed, temperature) {
  const { n_layer, n_head, n_embd } = LIVE.config;
  const sampling = { temperature, topK: Infinity, topP: 1 }, tokens = encode(prompt);
  const begin = (text, cached) => Object.assign(new Decoding(MODEL, text, seed, sampling, cached), { traced: true });
  const decoding = begin(tokens, true);
  while (decoding.text.length <= ROWS) decoding.next();
  return {
    form: { layers: n_layer, heads: n_head, width: n_embd, hidden: 4 * n_embd, norm: "RMSNorm", rotary: true, normed: true, activation: "ReLU²" },
    vocabulary: [...LIVE.vocabulary],
    tokens: decoding.text,
    prompt: tokens.length,
    temperature,
    seed,
    noise: decoding.draws.map(({ noise }) => noise),
    rows: decoding.traces,
    again: (count) => {
      const plain = begin(decoding.text.slice(0, count), false);
      plain.next();
      return plain.traces;
    },
  };
}

// Its prompt, its seed and its temperature can be changed; the text is then written anew.
function startPath(stage) {
  const known = [..."O Rome"].filter((char) => LIVE.vocabulary.includes(char)).join(""); // of another corpus, perhaps not all
  const asked = { prompt: known || LIVE.vocabulary[0], seed: 4, temperature: 0.8 };
  const reset = tokenPath(stage, storyOf(asked.prompt, asked.seed, asked.temperature));
  const error = make("p", { className: "note", hidden: true });
  error.setAttribute("role", "alert");
  const again = (values) => {
    Object.assign(asked, values);
    try {
      if (!asked.prompt) throw new Error("The prompt is empty: the model needs at least one character to go on from.");
      reset(storyOf(asked.prompt, asked.seed, asked.temperature));
      error.hidden = true;
    } catch ({ message }) {
      error.textContent = message;
      error.hidden = false;
    }
  };
  const field = (words, attributes, read) => {
    const input = make("input", attributes);
    input.addEventListener("change", () => again(read(input)));
    return make("label", { className: "knob" }, make("span", {}, words), input);
  };
  const prompt = field("prompt", { type: "text", value: asked.prompt, maxLength: ROWS - 4, spellcheck: false }, ({ value }) => ({ prompt: value }));
  const seed = field("seed", { type: "number", min: 0, max: 2 ** 32 - 1, value: asked.seed, inputMode: "numeric" },
    ({ value }) => ({ seed: Math.min(Math.max(Math.floor(Number(value)), 0), 2 ** 32 - 1) }));
  const warmth = slider("temperature", { min: 0.1, max: 2, step: 0.05, value: asked.temperature }, (temperature) => again({ temperature }));
  stage.querySelector(".knobs").append(warmth, prompt, seed);
  stage.querySelector(".knobs").after(error);
}

document.documentElement.classList.toggle("alone", ALONE);
if (location.hash !== "#strip") {
  at("path").hidden = false;
  startPath(at("stage"));
}

// The frame is as high as the figure.
if (ALONE && parent !== window) {
  const tell = () => parent.postMessage({ height: Math.ceil(at("path").getBoundingClientRect().bottom) }, "*");
  new ResizeObserver(tell).observe(at("path"));
}
