// Prefill and decode as one triangle: queries down, keys across. The reader moves the end of the
// prompt and the size of the chunks in which it is read; the weights stay, the passes change.
FIGURES.triangle = (data, stage) => {
  const LEFT = 46;
  const TOP = 42;
  const GRIP = 22; // pixels around the handle that take hold of it
  const n = data.chars.length;
  const state = { prompt: data.prompt, chunk: n, row: data.prompt };
  let cell = 0;

  // First row and end of each pass, as nanogpt.series.moving.passes says.
  function passes() {
    const starts = [];
    for (let start = 0; start < state.prompt; start += state.chunk) starts.push(start);
    for (let start = state.prompt; start < n; start++) starts.push(start);
    return starts.map((start, i) => ({ start, end: starts[i + 1] ?? n }));
  }

  // What a pass costs, with a cache and without, as nanogpt.series.moving.work counts.
  function work({ start, end }) {
    const [matrices, layers, width] = data.shape;
    const rows = [end - start, end < state.prompt ? 0 : end]; // without a cache the prompt is read at once
    return { rows, products: rows.map((count) => count * (matrices + 2 * layers * width * end)) };
  }

  const chosen = () => passes().find(({ end }) => state.row < end);

  function square(i, j, { start, end }) {
    const box = { x: LEFT + j * cell + 1, y: TOP + i * cell + 1, width: cell - 2, height: cell - 2, rx: 2 };
    const now = i >= start && i < end;
    if (j > i) return now && j < end ? svg("rect", { ...box, class: "hidden", fill: "url(#triangle-hidden)" }) : [];
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
      written(char, LEFT - 14, TOP + middle, { class: `char ${look === "kept" ? "later" : look}` })];
  }

  function draw(width) {
    cell = Math.min(36, Math.floor((width - LEFT - 14) / n));
    const pass = chosen();
    const [corner, side] = [state.prompt * cell, n * cell];
    const whole = work(pass).rows[1] * cell;
    const each = [...data.chars].map((_, i) => i);
    const upright = { class: "soft", transform: `rotate(-90 10 ${TOP + side / 2})` };
    return [TOP + side + 14,
      hatch("triangle-hidden"),
      written("keys", LEFT + side / 2, 8, { class: "soft" }),
      written("queries", 10, TOP + side / 2, upright),
      each.map((i) => names(i, pass)),
      each.map((i) => each.map((j) => square(i, j, pass))),
      whole ? svg("rect", { class: "again", x: LEFT - 1, y: TOP - 1, width: whole + 2, height: whole + 2 }) : [],
      svg("circle", { class: "handle", cx: LEFT + corner, cy: TOP + corner, r: 9 }),
      svg("circle", { class: "grip", cx: LEFT + corner, cy: TOP + corner, r: GRIP })];
  }

  // The handle on the diagonal: the prompt ends where it is dragged to.
  function drag(canvas) {
    let held = false;
    canvas.addEventListener("pointerdown", (event) => {
      held = event.target.classList.contains("grip");
      if (held) canvas.setPointerCapture(event.pointerId); // the circle is drawn anew at each move
    });
    canvas.addEventListener("pointermove", (event) => {
      if (!held) return;
      event.stopImmediatePropagation(); // no row is picked meanwhile
      const place = (event.clientY - canvas.getBoundingClientRect().top - TOP) / cell;
      moved("prompt")(Math.max(1, Math.min(n, Math.round(place))));
    });
    for (const name of ["pointerup", "pointercancel"]) canvas.addEventListener(name, () => (held = false));
  }

  // With a cache and without, over all passes.
  function sum(name) {
    return [0, 1].map((way) => passes().reduce((total, pass) => total + work(pass)[name][way], 0));
  }

  function count() {
    const now = work(chosen());
    const pairs = [now.rows, now.products, sum("rows"), sum("products")];
    pairs.forEach((pair, i) => pair.forEach((number, way) => (cells[i][way].textContent = grouped(number))));
  }

  function tell() {
    const all = passes();
    const { start, end } = chosen();
    const totals = sum("products");
    const prefill = state.chunk < state.prompt ? "a chunk of the prompt" : "the prefill";
    const queries = end - start === 1 ? "1 query" : `${end - start} queries`;
    const again = end < state.prompt ? "Without a cache the prompt is read at once, later." : "Dashed: the square that it computes without a cache.";
    told.textContent = `Pass ${all.findIndex((pass) => pass.end === end) + 1} of ${all.length}, ${end <= state.prompt ? prefill : "a decode step"}: ${queries}; ` +
      `keys: ${start} from the cache (blue), ${end - start} new (orange). ${again} In all, ${(totals[1] / totals[0]).toFixed(1)} times fewer multiplications with the cache.`;
  }

  function show() {
    tell();
    count();
    say();
    again();
  }

  function moved(name) {
    return (value) => {
      state[name] = value;
      if (name === "prompt") state.row = Math.min(value, n - 1); // the first decode step
      slideTo(knobs[name], value);
      show();
    };
  }

  const knobs = {
    prompt: slider("characters in the prompt", { min: 1, max: n, value: state.prompt }, (value) => moved("prompt")(value)),
    chunk: slider("chunk, at most", { min: 1, max: n, value: n }, (value) => moved("chunk")(value)),
  };
  const told = make("p", { className: "told", ariaLive: "polite" });
  const cells = [0, 1, 2, 3].map(() => [make("td"), make("td")]);
  const head = (text, scope) => Object.assign(make("th", {}, text), { scope });
  const counts = ["rows in this pass", "its multiplications", "rows in all passes", "all multiplications"];
  const body = counts.map((name, i) => make("tr", {}, head(name, "row"), ...cells[i]));
  const top = make("tr", {}, head("", "col"), head("with the cache", "col"), head("without", "col"));
  const boxes = [make("div"), make("div", {}, make("table", {}, top, ...body))];
  stage.append(make("div", { className: "knobs" }, ...Object.values(knobs)), make("div", { className: "sides" }, ...boxes), told);
  const { canvas, again } = drawing(boxes[0], draw);
  drag(canvas); // before the rows: it may stop them
  const say = rowPicker(canvas, "rows of the triangle", () => ({ top: TOP, high: cell, count: n, at: state.row, words: `row ${state.row}, ${quoted(data.chars[state.row])}` }), (row) => {
    state.row = row;
    show();
  });
  show();
};
