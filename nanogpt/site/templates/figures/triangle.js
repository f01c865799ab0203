// Prefill and decode as one triangle: queries down, keys across. The reader moves the end of the
// prompt and the size of the chunks in which it is read; the weights stay, the passes change.
FIGURES.triangle = (data, stage) => {
  const LEFT = 46;
  const TOP = 42;
  const GRIP = 22; // pixels: radius of the handle's touch area
  const ROWS = ["rows in this pass", "its multiplications", "rows in all passes", "all multiplications"];
  const n = data.chars.length;
  const each = [...data.chars].map((_, i) => i);
  const state = { prompt: data.prompt, chunk: n, row: Math.min(data.prompt, n - 1) };
  let cell = 0;

  // First row and end of each pass.
  function passes() {
    const starts = [];
    for (let start = 0; start < state.prompt; start += state.chunk) starts.push(start);
    for (let start = state.prompt; start < n; start++) starts.push(start);
    return starts.map((start, i) => ({ start, end: starts[i + 1] ?? n }));
  }

  // The cost of a pass, with and without a cache, counted as in notebook 05.
  function work({ start, end }) {
    const [matrices, layers, width] = data.shape;
    const rows = [end - start, end < state.prompt ? 0 : end]; // without a cache the prompt is read at once
    return { rows, products: rows.map((count) => count * (matrices + 2 * layers * width * end)) };
  }

  function total(name) {
    return [0, 1].map((way) => passes().reduce((sum, pass) => sum + work(pass)[name][way], 0));
  }

  const chosen = () => passes().find(({ end }) => state.row < end);

  function square(i, j, { start, end }) {
    const box = { x: LEFT + j * cell + 1, y: TOP + i * cell + 1, width: cell - 2, height: cell - 2, rx: 2 };
    const now = i >= start && i < end;
    if (j > i && !(now && j < end)) return [];
    if (j > i) return svg("rect", { ...box, class: "hidden", fill: "url(#triangle-hidden)" });
    const look = now ? (j < start ? "kept" : "now") : i < start ? "done" : "later";
    const strength = now ? 0.2 + 0.8 * Math.sqrt(data.weights[i][j]) : null;
    return svg("rect", { ...box, class: look, "data-cell": `${i},${j}`, "fill-opacity": strength });
  }

  function names(i, { start, end }) {
    const middle = (i + 0.5) * cell;
    const char = visible(data.chars[i]);
    const look = i < start ? "kept" : i < end ? "now" : "later";
    return [
      written(char, LEFT + middle, TOP - 13, { class: `char key ${look}` }),
      written(char, LEFT - 14, TOP + middle, { class: `char ${look === "now" ? "now" : "later"}` })];
  }

  // The square that the pass computes without a cache.
  function again(side) {
    const box = { x: LEFT - 1, y: TOP - 1, width: side + 2, height: side + 2 };
    return side ? svg("rect", { class: "again", ...box }) : [];
  }

  function draw(width) {
    cell = Math.min(36, Math.floor((width - LEFT - 14) / n));
    const pass = chosen();
    const middle = (n * cell) / 2;
    const corner = { cx: LEFT + state.prompt * cell, cy: TOP + state.prompt * cell };
    return [TOP + n * cell + 14,
      hatch("triangle-hidden"),
      written("keys", LEFT + middle, 8, { class: "soft" }),
      written("queries", 10, TOP + middle, { class: "soft", transform: `rotate(-90 10 ${TOP + middle})` }),
      each.map((i) => names(i, pass)),
      each.map((i) => each.map((j) => square(i, j, pass))),
      again(work(pass).rows[1] * cell),
      svg("circle", { class: "handle", ...corner, r: 9 }),
      svg("circle", { class: "grip", ...corner, r: GRIP })];
  }

  // The handle on the diagonal: the prompt ends where it is dragged to.
  function drag(canvas) {
    let held = false;
    canvas.addEventListener("pointerdown", (event) => {
      held = event.target.classList.contains("grip");
      if (held) canvas.setPointerCapture(event.pointerId); // the circle itself is drawn anew each time
    });
    canvas.addEventListener("pointermove", (event) => {
      if (!held) return;
      event.stopImmediatePropagation(); // no row is picked meanwhile
      const place = (event.clientY - canvas.getBoundingClientRect().top - TOP) / cell;
      moved("prompt", Math.max(1, Math.min(n, Math.round(place))));
    });
    for (const end of ["pointerup", "pointercancel"]) canvas.addEventListener(end, () => (held = false));
  }

  function count() {
    const now = work(chosen());
    const pairs = [now.rows, now.products, total("rows"), total("products")];
    pairs.flat().forEach((number, i) => (cells[i].textContent = grouped(number)));
  }

  function tell() {
    const all = passes();
    const { start, end } = chosen();
    const prefill = state.chunk < state.prompt ? "a chunk of the prompt" : "the prefill";
    const queries = end - start === 1 ? "1 query" : `${end - start} queries`;
    const [cached, plain] = total("products");
    told.textContent = `Pass ${all.findIndex((pass) => pass.end === end) + 1} of ${all.length}, ` +
      `${end > state.prompt ? "a decode step" : prefill}: ${queries}; ` +
      `keys: ${start} from the cache (blue), ${end - start} new (orange). ` +
      (end < state.prompt ? "Without a cache, the prompt is read later, in one pass. "
        : "Dashed: the square that this step computes without a cache. ") +
      `In total, ${(plain / cached).toFixed(1)} times fewer multiplications with the cache.`;
  }

  function show() {
    tell();
    count();
    say();
    picture.again();
  }

  function moved(name, value) {
    state[name] = value;
    if (name === "prompt") state.row = Math.min(value, n - 1); // the first decode step
    slideTo(knobs[name], value);
    show();
  }

  function counts() {
    const head = (scope, text) => Object.assign(make("th", {}, text), { scope });
    const top = make("tr", {}, ...["", "with the cache", "without"].map((text) => head("col", text)));
    const rows = ROWS.map((text, i) => make("tr", {}, head("row", text), cells[2 * i], cells[2 * i + 1]));
    return make("table", {}, top, ...rows);
  }

  const range = { min: 1, max: n };
  const knobs = {
    prompt: slider("characters in the prompt", { ...range, value: data.prompt }, (value) => moved("prompt", value)),
    chunk: slider("chunk size, at most", { ...range, value: n }, (value) => moved("chunk", value)),
  };
  const told = make("p", { className: "told", ariaLive: "polite" });
  const cells = ROWS.flatMap(() => [make("td"), make("td")]);
  const boxes = [make("div"), make("div", {}, counts())];
  stage.append(make("div", { className: "knobs" }, ...Object.values(knobs)));
  stage.append(make("div", { className: "sides" }, ...boxes), told);
  const picture = drawing(boxes[0], draw);
  drag(picture.canvas); // before the rows: it may stop them
  const say = rowPicker(picture.canvas, "rows of the triangle", () => {
    const { row: at } = state;
    return { top: TOP, high: cell, count: n, at, words: `${quoted(data.chars[at])}, row ${at}` };
  }, (row) => {
    state.row = row;
    show();
  });
  show();
};
