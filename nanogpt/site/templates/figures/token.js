// The whole path of a token. Columns are the stages of a forward pass, rows are the tokens of the text. With a cache, a
// step computes the newest row of each column and reads the older rows of two; without one it recomputes every row.
FIGURES.token = (data, stage) => tokenPath(stage, recorded(data));

const GROUPS = ["1 · Queries, keys, values", "2 · Attention", "3 · Feed-forward", "4 · Next token"];
// The stages in the order of the pass: the column's name, width and inputs, and whether each layer has it, the cache
// keeps it, or it has a single row however many are computed.
const STAGES = [
  { id: "token", name: "token", group: 0, wide: 0.7, from: [] },
  { id: "input", name: "embedding", group: 0, wide: 1.25, from: ["token"] },
  { id: "ln1", name: "norm", group: 0, layered: true, from: ["input"] },
  { id: "query", name: "query", group: 0, layered: true, from: ["ln1"] },
  { id: "key", name: "key", group: 0, layered: true, kept: true, from: ["ln1"] },
  { id: "value", name: "value", group: 0, layered: true, kept: true, from: ["ln1"] },
  { id: "weights", name: "attention weights", group: 1, wide: 3, layered: true, from: ["query", "key"] },
  { id: "mix", name: "weighted values", group: 1, wide: 1.15, layered: true, from: ["weights", "value"] },
  { id: "proj", name: "output projection", group: 1, wide: 1.25, layered: true, from: ["mix"] },
  { id: "attended", name: "residual stream", wide: 1.1, plus: ["input", "proj"], group: 1, layered: true, from: ["input", "proj"] },
  { id: "ln2", name: "norm", group: 2, layered: true, from: ["attended"] },
  { id: "hidden", name: "hidden layer", group: 2, positive: true, wide: 2, layered: true, from: ["ln2"] },
  { id: "down", name: "output", group: 2, layered: true, from: ["hidden"] },
  { id: "output", name: "residual stream", wide: 1.1, plus: ["attended", "down"], group: 2, layered: true, from: ["attended", "down"] },
  { id: "lnf", name: "final norm", group: 3, from: ["output"] },
  { id: "logits", name: "logits", group: 3, from: ["lnf"] },
  { id: "probs", name: "probabilities", group: 3, wide: 1.2, single: true, positive: true, from: ["logits"] },
  { id: "choice", name: "sampled", group: 3, wide: 0.8, single: true, from: ["probs"] },
];
const LAYERED = STAGES.filter(({ layered }) => layered);

// Splits the data recorded in Python into a trace for each row: nanogpt.site.token_path packs it.
function recorded(data) {
  const bytes = Uint8Array.from(atob(data.packed), (char) => char.charCodeAt(0));
  const numbers = new Int16Array(bytes.buffer), { form, scales } = data, C = form.width;
  let at = 0, vectors = 0;
  const vector = (size) => {
    const scale = scales[vectors++];
    return Float64Array.from(numbers.subarray(at, (at += size)), (number) => number * scale);
  };
  const row = (t) => {
    const trace = { table: vector(C), position: form.rotary ? null : vector(C), embedding: vector(C), layers: [] };
    for (let l = 0; l < form.layers; l++) {
      const layer = {};
      for (const name of ["ln1", "query", "key", "value", "mix", "proj", "attended", "ln2", "hidden", "down", "output"]) {
        layer[name] = vector(name === "hidden" ? form.hidden : C);
      }
      const all = vector(form.heads * (t + 1));
      layer.weights = Array.from({ length: form.heads }, (_, h) => all.subarray(h * (t + 1), (h + 1) * (t + 1)));
      trace.layers.push(layer);
    }
    return Object.assign(trace, { lnf: vector(C), logits: vector(data.vocabulary.length) });
  };
  const rows = data.tokens.slice(1).map((_, t) => row(t));
  return { ...data, rows, again: (count) => rows.slice(0, count) };
}

// Draws into the stage. `story` is a text and the record of how its model generated it:
//   form, vocabulary; tokens, of which `prompt` were given; temperature, seed; noise, for each new token;
//   rows, the trace of each token that was read; again(count), those traces computed without a cache.
// Returns a function that shows another story of the same form.
function tokenPath(stage, story) {
  const HIGH = 12; // of a row, in pixels
  const { form } = story, V = story.vocabulary.length, C = form.width, hs = C / form.heads;
  const moments = [];
  for (const one of STAGES) {
    if (!one.layered) moments.push({ id: one.id, layer: null });
    if (one !== LAYERED.at(-1)) continue;
    for (let layer = 0; layer < form.layers; layer++) moments.push(...LAYERED.map(({ id }) => ({ id, layer })));
  }
  const LAST = moments.length - 1;
  const state = { cached: true };
  let playing = null;

  // ---------------------------------------------------------------- the step that is shown

  const steps = () => story.tokens.length - story.prompt;
  const length = () => story.prompt + state.step; // tokens that the model has read after this step
  const first = () => (state.cached && state.step ? length() - 1 : 0); // of the rows that it computes
  const picked = () => moments[state.moment];
  const stageOf = (id) => STAGES.find((one) => one.id === id);
  const char = (at) => story.vocabulary[story.tokens[at]];
  const traces = () => (state.cached ? story.rows : state.again);

  // The numbers of a stage in the visible layer, from a trace; and for the token at a position.
  function numbersOf(trace, { id, layered }) {
    if (id === "input") return state.layer ? trace.layers[state.layer - 1].output : trace.embedding;
    if (id === "probs") return probabilities(trace.logits);
    return layered ? trace.layers[state.layer][id] : trace[id];
  }
  const numbers = (one, at) => numbersOf(traces()[at], one);

  function probabilities(logits) {
    const most = Math.max(...logits);
    const each = Array.from(logits, (logit) => Math.exp((logit - most) / story.temperature));
    const sum = each.reduce((a, b) => a + b);
    return each.map((one) => one / sum);
  }

  // Whether this step computes that row of a stage ("now"), reads it from the cache ("kept"), or does not need it ("").
  function kindOf({ kept, single }, at) {
    if (at >= length()) return "";
    if (at >= (single ? length() - 1 : first())) return "now";
    return kept ? "kept" : "";
  }

  // When the stage is computed, as a moment of the step.
  const momentOf = ({ id, layered }, layer = state.layer) =>
    moments.findIndex((moment) => moment.id === id && (!layered || moment.layer === layer));

  // Multiplications of a stage for one row, counted as notebook 05 counts them.
  function products({ id }, keys) {
    const matrices = { query: C, key: C, value: C, proj: C, hidden: form.hidden, down: form.hidden, logits: V };
    if (id === "weights" || id === "mix") return C * keys;
    return (matrices[id] ?? 0) * C;
  }

  // The cost of a step: the rows that it computes, and the multiplications.
  function work(step, cached) {
    const keys = story.prompt + step, rows = cached && step ? 1 : keys;
    const each = STAGES.reduce((sum, one) => sum + products(one, keys) * (one.layered ? form.layers : 1), 0);
    return { rows, products: rows * each };
  }

  function total(cached) {
    const each = Array.from({ length: state.step + 1 }, (_, step) => work(step, cached));
    return each.reduce((sum, { rows, products }) => ({ rows: sum.rows + rows, products: sum.products + products }));
  }

  // ---------------------------------------------------------------- columns

  // From 0 for the smallest number of a stage to 1 for the largest.
  const strength = ({ positive }, value, most) => (positive ? Math.sqrt(value / most) : ((value / most + 1) / 2) ** 2);

  // A row of a column as cells: strong for a large number, pale for a small one. A cell shows the number
  // furthest from zero among those it covers.
  function cells(context, one, at, width) {
    const values = numbers(one, at), most = largest(one);
    const count = Math.min(values.length, Math.max(1, Math.floor(width / 2)));
    for (let i = 0; i < count; i++) {
      let value = 0;
      for (let j = Math.floor((i * values.length) / count); j < Math.floor(((i + 1) * values.length) / count); j++) {
        if (Math.abs(values[j]) > Math.abs(value)) value = values[j];
      }
      context.globalAlpha = 0.08 + 0.92 * strength(one, value, most);
      context.fillRect((i * width) / count, at * HIGH + 1, width / count, HIGH - 2);
    }
  }

  function paint({ canvas, one }) {
    if (!canvas) return;
    const width = canvas.clientWidth, high = canvas.clientHeight;
    if (!width) return;
    Object.assign(canvas, { width: width * devicePixelRatio, height: high * devicePixelRatio });
    const context = canvas.getContext("2d"), look = getComputedStyle(canvas);
    context.scale(devicePixelRatio, devicePixelRatio);
    const done = momentOf(one) <= state.until;
    for (let at = 0; at < length(); at++) {
      const kind = kindOf(one, at);
      const shown = kind === "kept" || (kind === "now" && done);
      context.fillStyle = look.getPropertyValue(shown ? `--${kind}` : "--line");
      context.globalAlpha = 1;
      if (!shown) context.fillRect(0, (at + 0.5) * HIGH - 0.5, width, 1);
      else if (one.id === "weights") squares(context, at, width);
      else cells(context, one, at, width);
    }
    context.globalAlpha = 1;
  }

  // The weights of a row in each head, side by side: one cell for each token that it attends to.
  function squares(context, at, width) {
    const gap = 6, side = (width - gap * (form.heads - 1)) / form.heads, cell = side / story.rows.length;
    traces()[at].layers[state.layer].weights.forEach((weights, head) => {
      weights.forEach((weight, key) => {
        context.globalAlpha = 0.08 + 0.92 * Math.sqrt(weight);
        const from = head * (side + gap) + key * cell;
        context.fillRect(from, at * HIGH + 1, Math.max(1, cell - (cell > 4 ? 1 : 0)), HIGH - 2);
      });
    });
  }

  // The largest number of a column, over the whole text: colours mean the same at every step.
  const scales = new Map();
  function largest(one) {
    if (one.id === "probs") return 1;
    const name = `${one.id} ${state.layer}`;
    if (!scales.has(name)) {
      const each = story.rows.map((trace) => numbersOf(trace, one).reduce((most, value) => Math.max(most, Math.abs(value)), 0));
      scales.set(name, Math.max(...each) || 1);
    }
    return scales.get(name);
  }

  // The shape of a stage's result in this step, in PyTorch's notation.
  function shape(one) {
    const rows = one.single ? 1 : length() - first();
    if (one.id === "token" || one.id === "choice") return `(${rows})`;
    if (one.id === "weights") return `(${form.heads}, ${rows}, ${length()})`;
    const size = { hidden: form.hidden, logits: V, probs: V }[one.id] ?? C;
    return `(${one.kept ? length() : rows}, ${size})`;
  }

  const nameOf = ({ id, name }) => (id === "input" && state.layer ? "residual stream" : name);
  const words = (count, what) => `${count} ${what}${count === 1 ? "" : "s"}`;

  function describe(column) {
    const { button, one } = column, rows = [...Array(length()).keys()].map((at) => kindOf(one, at));
    const [now, kept] = ["now", "kept"].map((kind) => rows.filter((row) => row === kind).length);
    const later = momentOf(one) > state.until;
    const on = picked().id === one.id;
    column.name.textContent = nameOf(one);
    column.shape.textContent = shape(one);
    Object.assign(button.dataset, { now: later ? 0 : now, kept });
    button.setAttribute("aria-pressed", on);
    button.tabIndex = on ? 0 : -1;
    const counts = [kept && `${words(kept, "row")} from the cache`, later ? "not yet computed" : `${words(now, "row")} computed`];
    column.said.textContent = counts.filter(Boolean).join(", ");
    button.classList.toggle("later", later);
    button.classList.toggle("read", stageOf(picked().id).from.includes(one.id));
    // The stage being computed is uncovered from the left.
    column.cover.hidden = !(on && state.moving);
    const from = one.single ? length() - 1 : first();
    Object.assign(column.cover.style, { top: `${from * HIGH}px`, height: `${(length() - from) * HIGH}px` });
    if (column.cache) Object.assign(column.cache.style, { height: `${first() * HIGH}px`, display: first() ? "" : "none" });
    if (one.id === "choice") column.letters.forEach((letter, at) => (letter.textContent = at === length() - 1 && !later ? visible(char(at + 1)) : ""));
  }

  // The characters of the rows that the model has read.
  function spell(letters) {
    letters.forEach((letter, at) => {
      letter.textContent = at < length() ? visible(char(at)) : "";
      letter.className = at < first() ? "old" : "now";
    });
  }

  // ---------------------------------------------------------------- the panel below

  const signed = (number) => number.toFixed(2).replace(/^-(?=0.00$)/, "").replace("-", "−");
  const percent = (share) => (share < 0.001 ? "<0.1%" : `${(100 * share).toFixed(share < 0.0995 ? 1 : 0)}%`);

  // The numbers of one row, coloured as in its column: by head, or as the sum that they are.
  function vector(one) {
    const split = ["query", "key", "value", "mix"].includes(one.id);
    if (split) {
      const values = numbers(one, state.row);
      return Array.from({ length: form.heads }, (_, h) => grid(one, `head ${h}`, values.slice(h * hs, (h + 1) * hs)));
    }
    return [grid(one, "", numbers(one, state.row), terms(one))];
  }

  // The terms of a row's numbers, if they are sums.
  function terms({ id, plus = [] }) {
    const { table, position } = traces()[state.row];
    if (id === "input" && !state.layer && position) return [table, position];
    return plus.map((each) => numbers(stageOf(each), state.row));
  }

  // A cell for each number, below the terms of its sum.
  function grid(one, label, values, terms = []) {
    const most = largest(one), kind = kindOf(one, state.row);
    const cells = Array.from(values, (value, i) => {
      const above = terms.map((term, j) => make("small", {}, (j && term[i] > 0 ? "+" : "") + signed(term[i])));
      const cell = make("span", {}, ...above, make("b", {}, signed(value)));
      cell.style.setProperty("--heat", strength(one, value, most).toFixed(3));
      return cell;
    });
    return make("div", { className: `vector ${kind}` }, make("p", { className: "title" }, label), make("div", {}, ...cells));
  }

  // How much the token attends to each token so far, in each head: a row for each head, on a phone for each token.
  function attention() {
    const each = traces()[state.row].layers[state.layer].weights, keys = [...each[0].keys()];
    const cell = (head, key) => {
      const weight = each[head][key];
      const box = make("td", {}, make("small", {}, signed(score(head, key))), make("b", {}, percent(weight)));
      box.style.setProperty("--heat", Math.sqrt(weight).toFixed(3));
      return box;
    };
    const named = (key) => `${quoted(char(key))} ${key}`;
    const across = numbersBox.clientWidth > 90 + 54 * keys.length; // pixels of a column
    const top = across ? keys.map(named) : each.map((_, h) => `head ${h}`);
    const rows = across
      ? each.map((_, h) => [`head ${h}`, ...keys.map((key) => cell(h, key))])
      : keys.map((key) => [named(key), ...each.map((_, h) => cell(h, key))]);
    const lines = rows.map(([name, ...cells]) => make("tr", {}, heading(name, "row"), ...cells));
    const head = make("tr", {}, heading("attends to"), ...top.map((name) => heading(name)));
    return [make("table", { className: `heated ${kindOf(stageOf("weights"), state.row)}` }, head, ...lines)];
  }

  // The input of the softmax: q · k / √hs of a head.
  function score(head, key) {
    const [query, other] = [numbers(stageOf("query"), state.row), numbers(stageOf("key"), key)];
    let dot = 0;
    for (let i = head * hs; i < (head + 1) * hs; i++) dot += query[i] * other[i];
    return dot / Math.sqrt(hs);
  }

  const heading = (text, scope = "col") => Object.assign(make("th", {}, text), { scope });

  // The most likely candidates and the sampled one: logit, probability, noise, and the time of arrival.
  function candidates() {
    const { logits } = traces()[length() - 1], probs = probabilities(logits), noise = story.noise[state.step];
    const token = story.tokens[length()];
    const order = [...probs.keys()].sort((a, b) => probs[b] - probs[a]);
    const shown = order.slice(0, 8);
    if (!shown.includes(token)) shown.push(token);
    const rest = V - shown.length;
    const top = ["token", "logit", `÷ ${story.temperature}`, "probability", "noise", "noise ÷ probability"];
    const rows = shown.map((id) => {
      const bar = make("td", { className: "bar" }, percent(probs[id]));
      bar.style.setProperty("--share", probs[id].toFixed(4));
      const parts = [signed(logits[id]), signed(logits[id] / story.temperature), bar, noise[id].toFixed(3), shortly(noise[id] / probs[id])];
      const cells = parts.map((part) => (part instanceof Element ? part : make("td", {}, part)));
      return make("tr", { className: id === token ? "drawn" : "" }, heading(quoted(story.vocabulary[id]), "row"), ...cells);
    });
    const table = make("table", { className: "candidates" }, make("tr", {}, ...top.map((text) => heading(text))), ...rows);
    return [table, make("p", { className: "title" }, `And ${words(rest, "less likely candidate")}.`)];
  }
  const shortly = (number) => (number < 1000 ? number.toPrecision(3) : grouped(number));

  // A token, its number in the vocabulary, its position.
  function tokens() {
    const all = [...Array(length()).keys()].map((at) =>
      make("span", { className: kindOf(stageOf("token"), at) || "old" }, make("b", {}, visible(char(at))), ` ${story.tokens[at]}`));
    return [make("div", { className: "ids" }, ...all)];
  }

  function details(one) {
    if (one.id === "token") return tokens();
    if (one.id === "weights") return attention();
    if (["probs", "choice", "logits"].includes(one.id) && state.row === length() - 1) return candidates();
    return vector(one);
  }

  function explanation({ id }) {
    const at = state.row, count = length(), me = quoted(char(at)), layer = state.layer;
    const { norm, rotary, normed, activation, heads, hidden } = form;
    const scaled = norm === "RMSNorm" ? "scaled so that the mean square of its numbers is 1" : "with mean 0 and variance 1, then a learned scale and shift for each number";
    const turned = [normed && "normalised in each head", rotary && "rotated by an angle that depends on the position"].filter(Boolean).join(" and ");
    const also = turned ? ` It is ${turned}.` : "";
    const again = count === 1 ? "" : ` Without a cache, the model computes all ${count} rows, although ${count - 1} of them are the same as in the step before.`;
    const held = first() ? `${words(first(), "row")} come from the cache, 1 is new and is appended to it.` : state.cached ? "This step reads the prompt: every row is new and goes to the cache." : `All ${count} rows are computed, and forgotten after the step.`;
    const active = id === "hidden" ? numbers(stageOf("hidden"), at).filter((number) => number > 0).length : 0;
    const token = quoted(char(count));
    return {
      token: `${me} is token ${story.tokens[at]} of a vocabulary of ${V}. Its position is ${at}.`,
      input: layer ? `The residual stream as layer ${layer - 1} leaves it.`
        : rotary ? `The row of the token embedding table for ${me}${norm === "RMSNorm" ? ", normalised" : ""}. It starts the residual stream, to which every layer adds. Positions come in later, as rotations of queries and keys.`
          : `The row of the token embedding table for ${me} plus the row of the position embedding table for position ${at}, number by number. It starts the residual stream, to which every layer adds.`,
      ln1: `${norm}: the residual stream ${scaled}.`,
      query: `What ${me} looks for: the normalised residual stream times the query matrix, ${hs} numbers for each of ${heads} heads.${also} A query is used in its own step only, so no cache keeps it.`,
      key: `What queries are matched against, for each token.${also} ${held}`,
      value: `What each token passes on to those that attend to it. ${held}`,
      weights: `How much ${me} attends to each token so far, in each of ${heads} heads: above, the score q\u00a0·\u00a0k\u00a0/\u00a0√${hs}; below, the weight, a softmax over the tokens.${first() < count - 1 ? " The mask hides later tokens, which leaves a triangle." : ""}`,
      mix: `The values of all ${at + 1} tokens, weighted and added up in each head. The heads are concatenated.`,
      proj: `The output projection: one matrix that mixes the ${heads} heads.`,
      attended: `Attention adds to the residual stream and overwrites nothing: ${layer ? "residual stream" : "embedding"} + output projection, number by number.`,
      ln2: `${norm} again: the residual stream ${scaled}.`,
      hidden: `The feed-forward network widens each token to ${hidden} numbers. ${activation} sets the negative ones to 0${activation === "ReLU²" ? " and squares the others" : ""}: ${active} of ${hidden} are active for ${me}. Each token is computed by itself here.`,
      down: `The second matrix of the feed-forward network: ${hidden} numbers become ${C} again.`,
      output: `The feed-forward network adds its output to the residual stream, number by number. ${layer < form.layers - 1 ? `Layer ${layer + 1} reads it.` : "This was the last layer."}`,
      lnf: `${norm} once more, before the output matrix.`,
      logits: `The final norm times the output matrix: a score for each of ${V} candidates.${first() === count - 1 ? "" : ` Only the last of ${count} rows is used.`}`,
      probs: `softmax(logits / ${story.temperature}). A temperature below 1 favours the likeliest candidates; above 1 it makes them more equal.`,
      choice: `Sampling as a race: each candidate gets an exponential random number, its noise, from seed ${story.seed}. The smallest noise ÷ probability wins: ${token}. It is appended to the text, and the next step reads it at position ${count}.`,
    }[id] + (id === "query" && !state.cached ? again : "");
  }

  function panel() {
    const one = stageOf(picked().id), count = length(), rows = one.single ? 1 : count - first();
    if (!kindOf(one, state.row)) state.row = count - 1;
    const layer = one.layered || (one.id === "input" && state.layer) ? `layer ${state.layer} · ` : "";
    const which = ["token", "choice", "probs"].includes(one.id) ? "" : ` · row ${state.row}, ${quoted(char(state.row))}`;
    title.replaceChildren(make("b", {}, `${layer}${nameOf(one)}`), ` ${shape(one)}${which}`);
    told.textContent = explanation(one);
    const each = products(one, count);
    const other = one.single ? 1 : state.cached ? count : state.step ? 1 : count;
    const compare = `${state.cached ? "without" : "with"} a cache: ${grouped(other * each)}`;
    cost.textContent = each ? `Multiplications in this stage: ${grouped(rows * each)} (${compare}).` : "";
    numbersBox.replaceChildren(...details(one));
  }

  function counts() {
    const parts = [work(state.step, true), work(state.step, false), total(true), total(false)];
    const said = [parts[0].rows, parts[1].rows, parts[0].products, parts[1].products, parts[2].products, parts[3].products];
    said.forEach((number, i) => {
      amounts[i].textContent = grouped(number);
      amounts[i].classList.toggle("chosen", (i % 2 === 0) === state.cached);
    });
  }

  // The text so far: the prompt, the generated text, the token being read, and the sampled one.
  function writing() {
    const end = length(), done = state.until === LAST;
    const spans = story.tokens.slice(0, end + 1).map((_, at) => {
      const kind = at === end ? "next" : at >= first() ? "now" : "kept";
      const shown = at < end || done ? visible(char(at)) : "?";
      return make("span", { className: kind }, shown);
    });
    text.replaceChildren(...spans);
    const reads = state.step ? `reads ${quoted(char(end - 1))} at position ${end - 1}` : `reads the prompt, ${words(end, "token")}`;
    where.textContent = `Step ${state.step + 1} of ${steps()} ${reads}${done ? ` and writes ${quoted(char(end))}` : ""}.`;
  }

  // ---------------------------------------------------------------- changes

  function draw() {
    said.ariaLive = playing ? "off" : "polite";
    stage.dataset.way = state.cached ? "cached" : "plain";
    columns.forEach(describe);
    columns.forEach(paint);
    for (const { letters, one } of sides) if (one?.id !== "choice") spell(letters);
    groups.forEach((group, i) => {
      const on = stageOf(picked().id).group === i;
      group.classList.toggle("on", on);
      group.firstChild.setAttribute("aria-current", on ? "step" : "false");
    });
    [...layers.querySelectorAll("input")].forEach((input, layer) => (input.checked = layer === state.layer));
    writing();
    counts();
    panel();
    play.textContent = playing ? "Pause" : "Play";
    back.disabled = !state.step && !state.moment;
    on.disabled = state.step === steps() - 1 && state.moment === LAST;
    earlier.disabled = !state.step;
    later.disabled = state.step === steps() - 1;
    state.moving = false;
  }

  function change(values) {
    const before = state.step;
    Object.assign(state, values);
    if (state.step !== before || state.row >= length()) state.row = length() - 1;
    state.layer = picked().layer ?? (stageOf(picked().id).group === 3 ? form.layers - 1 : state.layer);
    if (picked().id === "token" || picked().id === "input") state.layer = 0;
    if (!state.cached && state.again?.length !== length()) state.again = story.again(length());
    draw();
  }

  // One moment forward or back, into the next or the previous token.
  function walk(by) {
    const to = state.moment + by, step = state.step + (to > LAST) - (to < 0);
    if (step < 0 || step >= steps()) return stop();
    const moment = (to + moments.length) % moments.length;
    change({ step, moment, until: moment, moving: true });
  }

  // A click computes a stage if it is not computed yet; otherwise it only shows its numbers.
  function pick(one) {
    stop();
    const moment = momentOf(one);
    change({ moment, until: Math.max(state.until, moment) });
  }

  const pace = () => (picked().layer ? 350 : 1000); // milliseconds: all layers after the first are alike
  function goOn() {
    walk(1);
    if (playing) playing = setTimeout(goOn, pace());
  }
  function stop() {
    if (!playing) return;
    clearTimeout(playing);
    playing = null;
    draw();
  }
  function toggle() {
    if (playing) return stop();
    const over = state.step === steps() - 1 && state.until === LAST && state.moment === LAST;
    playing = setTimeout(goOn, pace());
    change(over ? { step: 0, moment: 0, until: 0 } : { until: state.moment });
  }

  const jump = (by) => {
    stop();
    change({ step: Math.max(0, Math.min(steps() - 1, state.step + by)), until: LAST });
  };

  function keys(event) {
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    const rows = [...Array(length()).keys()].filter((at) => kindOf(stageOf(picked().id), at));
    const row = (by) => change({ row: rows[Math.max(0, Math.min(rows.length - 1, rows.indexOf(state.row) + by))] });
    const move = {
      ArrowRight: () => walk(1), ArrowLeft: () => walk(-1), ArrowDown: () => row(1), ArrowUp: () => row(-1),
      PageDown: () => jump(1), PageUp: () => jump(-1),
      Home: () => change({ moment: 0, until: 0 }), End: () => change({ moment: LAST, until: LAST }),
    }[event.key];
    if (!move) return;
    event.preventDefault();
    stop();
    move();
    columns.find(({ one }) => one.id === picked().id).button.focus();
  }

  // ---------------------------------------------------------------- elements

  const button = (label, name, act) => {
    const made = make("button", { type: "button", ariaLabel: name, title: name }, label);
    made.addEventListener("click", act);
    return made;
  };
  const earlier = button("«", "The token before", () => jump(-1));
  const back = button("‹", "One stage back", () => (stop(), walk(-1)));
  const play = make("button", { type: "button", className: "play" }, "Play");
  play.addEventListener("click", toggle);
  const on = button("›", "One stage on", () => (stop(), walk(1)));
  const later = button("»", "The next token", () => jump(1));
  const without = make("input", { type: "checkbox" });
  without.addEventListener("change", () => change({ cached: !without.checked }));
  const text = make("p", { className: "writes" });
  const where = make("p", { className: "title" });
  const amounts = Array.from({ length: 6 }, () => make("td"));
  const names = ["rows computed", "multiplications", "… in all steps so far"];
  const table = make("table", { className: "work" },
    make("tr", {}, heading("this step"), heading("with a cache"), heading("without")),
    ...names.map((name, i) => make("tr", {}, heading(name, "row"), amounts[2 * i], amounts[2 * i + 1])));
  const layers = radios("layer", Array.from({ length: form.layers }, (_, i) => [i, String(i)]), 0, (layer) => {
    stop();
    const { id } = stageOf(picked().id).layered ? picked() : { id: "ln1" };
    const moment = moments.findIndex((one) => one.id === id && one.layer === layer);
    change({ moment, until: Math.max(state.until, moment) });
  });
  const title = make("p", { className: "name" });
  const told = make("p", { className: "told" });
  const said = make("div", {}, title, told);
  const cost = make("p", { className: "title" });
  const numbersBox = make("div", { className: "numbers", tabIndex: 0 });
  numbersBox.setAttribute("role", "group");
  numbersBox.setAttribute("aria-label", "The numbers of the chosen stage");

  const sides = []; // the characters again, beside each group but the first
  const columns = [];
  const groups = GROUPS.map((name, group) => {
    const head = make("button", { type: "button", className: "group-name" }, name);
    head.addEventListener("click", () => pick(STAGES.find((one) => one.group === group && one.id !== "token")));
    const line = make("div", { className: "columns" });
    if (group) {
      const box = make("div", { className: "letters", ariaHidden: "true" });
      sides.push({ box });
      line.append(box);
    }
    for (const one of STAGES.filter((each) => each.group === group)) {
      const parts = Object.fromEntries(["name", "shape", "said"].map((part) => [part, make("span", { className: part })]));
      const rows = make("span", { className: "rows", ariaHidden: "true" });
      const made = make("button", { type: "button", className: "part" }, parts.name, parts.shape, parts.said, rows);
      made.dataset.stage = one.id;
      made.style.setProperty("--wide", one.wide ?? 1);
      const column = { one, button: made, box: rows, ...parts, cover: make("span", { className: "cover", hidden: true }) };
      if (one.id !== "token" && one.id !== "choice") rows.append((column.canvas = make("canvas")), column.cover);
      else sides.push(column);
      if (one.kept) rows.append((column.cache = make("span", { className: "cache" })));
      made.addEventListener("click", (event) => {
        const row = Math.floor((event.clientY - rows.getBoundingClientRect().top) / HIGH);
        if (event.detail && row >= 0 && kindOf(one, row)) state.row = row; // a pointer, not a key
        pick(one);
      });
      columns.push(column);
      line.append(made);
    }
    return make("section", { className: "group" }, head, line);
  });
  const path = make("div", { className: "path" }, ...groups);
  path.setAttribute("role", "group");
  path.setAttribute("aria-label", "The stages of the step. Arrow keys left and right: stage by stage; up and down: row by row");
  path.addEventListener("keydown", keys);

  function reset(other) {
    story = other;
    stop();
    scales.clear();
    state.again = null;
    for (const side of sides) side.box.replaceChildren(...(side.letters = story.rows.map(() => make("i"))));
    for (const { box } of columns) box.style.height = `${story.rows.length * HIGH}px`;
    Object.assign(state, { step: Math.min(state.step ?? 6, steps() - 1), moment: state.moment ?? momentOf(stageOf("key"), 0), until: LAST, row: 0 });
    change({ row: length() - 1 });
  }

  stage.classList.add("token-path");
  const walks = make("div", { className: "steps" }, earlier, back, play, on, later, make("label", {}, without, " without a cache"));
  const lead = make("div", { className: "lead" }, make("div", {}, where, text, walks), table);
  stage.append(lead, make("div", { className: "knobs" }, layers), path,
    make("p", { className: "legend title" },
      ...[["now", "computed in this step"], ["kept", "read from the cache"], ["unused", "not computed"]].map(([kind, what]) => make("span", { className: kind }, what)),
      make("span", {}, "dark: large; pale: small or negative")),
    make("div", { className: "panel" }, said, cost, numbersBox));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => columns.forEach(paint));
  new ResizeObserver(() => {
    columns.forEach(paint);
    panel();
  }).observe(path);
  reset(story);
  return reset;
}
