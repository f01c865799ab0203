// The cost of a token against its position in the text: multiplications, as notebook 05 counts them, and
// the times of the run. A shaded area is the sum up to where the reader points.
const COST = { height: 320, left: 50, right: 46, top: 22, bottom: 40 };
const WAYS = ["without", "with"];

// Multiplications of the step after T tokens, with W weights in matrices and L layers of width C.
function multiplications(T, { W, L, C }, way) {
  const n = way === "with" ? 1 : T;
  return n * W + n * T * 2 * L * C;
}

// The total for all steps up to the one after that many tokens.
function multiplicationsUpTo(tokens, shape, way) {
  let sum = 0;
  for (let T = 1; T <= tokens; T += 1) sum += multiplications(T, shape, way);
  return sum;
}

// Maps a position and a number of multiplications to pixels of a plot of that width.
function costScale(width, tokens, most) {
  const { left, right, top, bottom, height } = COST;
  const across = (width - left - right) / tokens;
  const up = (height - top - bottom) / most;
  return {
    end: width - right,
    x: (place) => left + place * across,
    y: (count) => height - bottom - count * up,
    place: (x) => Math.round((x - left) / across),
  };
}

// The cost up to a position as a path of at most 200 points, shifted up by some multiplications.
function costPath({ x, y }, shape, way, to, higher = 0) {
  const places = [];
  for (let T = 1; T < to; T += Math.ceil(to / 200)) places.push(T);
  const points = [...places, to].map((T) => `${x(T)},${y(multiplications(T, shape, way) + higher)}`);
  return `M${points.join("L")}`;
}

// Axes; the one on the right has milliseconds, each as high as `perMs` multiplications.
function costAxes({ x, y, end }, most, tokens, perMs) {
  const { left, bottom, height } = COST;
  const text = (words, at, up, anchor) => svg("text", { x: at, y: up, "text-anchor": anchor }, words);
  const short = (count) => count.toLocaleString("en", { notation: "compact" });
  const drawn = [text("multiplications", 0, 11, "start"), text("position in the text", (left + end) / 2, height - 4, "middle")];
  for (const count of ticks(most)) {
    drawn.push(svg("line", { x1: left, x2: end, y1: y(count), y2: y(count), class: "grid" }));
    drawn.push(text(short(count), left - 6, y(count) + 4, "end"));
  }
  for (const place of ticks(tokens)) drawn.push(text(place, x(place), height - bottom + 18, "middle"));
  if (perMs) drawn.push(text("ms, measured", end + COST.right, 11, "end"));
  for (const ms of perMs ? ticks(most / perMs) : []) drawn.push(text(ms, end + 6, y(ms * perMs) + 4, "start"));
  return drawn;
}

// The measurements, drawn at the height of the multiplications that take as long.
function costPoints(points, { step, each }, { x, y, end }) {
  const place = { x: end - 6, y: y(step / each / 2) + 4, "text-anchor": "end" };
  const drawn = [];
  for (const point of points) {
    const at = x((point.from + point.to) / 2);
    for (const way of WAYS) {
      const [low, middle, high] = ["low", "median", "high"].map((which) => y(point[way][which] / each));
      drawn.push(svg("line", { x1: at, x2: at, y1: low, y2: high, class: `spread ${way}` }));
      drawn.push(svg("circle", { cx: at, cy: middle, r: 3, class: way }));
    }
  }
  const room = y(0) - y(step / each) > 30; // for text between the lines
  return room ? [...drawn, svg("text", place, `${duration(step)} in every step`)] : drawn;
}

// How the points are scaled, or why there are none.
function costNote({ line, turns, layers, width }, own) {
  if (!own) return `The run measured ${layers} layers of width ${width}. For other models there is only the count.`;
  if (!line) return "This run's times do not fit a straight line over the count: its text is short, or the machine was busy.";
  const off = `${(100 * line.off).toFixed(0)} %`;
  return `Points: measured times, medians of ${turns}; lowest, median and highest of neighbouring tokens. `
    + `Dashed: the straight line through all ${line.n} medians, which sets the scale on the right: ${duration(line.step)} for `
    + `every step, whatever it computes, and 1 ms for ${inWords(1e-3 / line.each)} multiplications. Half lie within ${off} of it.`;
}

FIGURES.cost = (data, stage) => {
  const { line, layers, width, tokens } = data;
  const state = { layers, width, tokens, place: Math.ceil(tokens / 2) };
  const plot = svg("svg", { tabindex: 0, role: "slider", class: "plot", "aria-label": "Position in the text" });
  const told = make("table", { className: "told", ariaLive: "polite" });
  const note = make("p", { className: "meta" });
  const knobs = make("div", { className: "knobs" });
  const back = make("button", { type: "button" }, "Back to this run's model");
  const isOwn = () => state.layers === layers && state.width === width;
  let scale = null;

  function shape() {
    const { layers: L, width: C } = state;
    return { W: L * data.block * C ** 2 + data.vocabulary * C, L, C };
  }

  function draw() {
    if (!plot.clientWidth) return; // not in the page yet
    const { tokens, place } = state;
    const points = isOwn() && line ? data.points.filter((point) => point.to <= tokens) : [];
    const highest = points.map((point) => point.without.high / line.each);
    const most = Math.max(multiplications(tokens, shape(), "without"), ...highest);
    scale = costScale(plot.clientWidth, tokens, most);
    const drawn = costAxes(scale, most, tokens, points.length && 1e-3 / line.each);
    for (const way of WAYS) {
      const path = (to, higher) => costPath(scale, shape(), way, to, higher);
      const floor = `L${scale.x(place)},${scale.y(0)}L${scale.x(1)},${scale.y(0)}Z`;
      drawn.push(svg("path", { d: path(place) + floor, class: `area ${way}` }));
      drawn.push(svg("path", { d: path(tokens), class: `curve ${way}` }));
      if (points.length) drawn.push(svg("path", { d: path(tokens, line.step / line.each), class: `dashed curve ${way}` }));
    }
    if (points.length) drawn.push(...costPoints(points, line, scale));
    drawn.push(svg("line", { x1: scale.x(place), x2: scale.x(place), y1: COST.top, y2: scale.y(0), class: "here" }));
    plot.setAttribute("viewBox", `0 0 ${plot.clientWidth} ${COST.height}`);
    plot.replaceChildren(...drawn);
  }

  // A row of the table: a label, one number with and one without a cache, and their ratio.
  function row(words, values, inWords, last = values && times(values[0] / values[1])) {
    const numbers = WAYS.map((way, i) => make("td", { className: way }, values ? inWords(values[i]) : "–"));
    return make("tr", {}, make("th", { scope: "row" }, words), ...numbers, make("td", {}, last || ""));
  }

  function tell() {
    const { place, tokens } = state;
    const now = WAYS.map((way) => multiplications(place, shape(), way));
    const [sums, twice] = [place, 2 * place].map((to) => WAYS.map((way) => multiplicationsUpTo(to, shape(), way)));
    const near = isOwn() && data.points.find((point) => point.from <= place && place <= point.to);
    const measured = near && WAYS.map((way) => near[way].median);
    told.replaceChildren(
      row("", WAYS, (way) => way, " "),
      row(`multiplications of token ${grouped(place)}`, now, grouped),
      row("for the text so far, shaded", sums, inWords),
      row("if that text doubles", twice.map((sum, i) => sum / sums[i]), (ratio) => `${ratio.toFixed(1)} times`, " "),
      row(near ? `measured, tokens ${near.from} to ${near.to}` : "measured", measured, duration),
    );
    const value = { min: 1, max: tokens, now: place, text: `token ${place}: ${times(now[0] / now[1])} without a cache` };
    for (const name in value) plot.setAttribute(`aria-value${name}`, value[name]);
  }

  function change(values) {
    Object.assign(state, values);
    state.place = Math.min(Math.max(state.place, 1), state.tokens);
    draw();
    tell();
    note.textContent = costNote(data, isOwn());
    back.hidden = isOwn() && state.tokens === tokens;
  }

  // Slider steps that include the run's own model.
  function setKnobs() {
    const steps = (value, step, max) => ({ min: value % step || step, max, step, value });
    knobs.replaceChildren(
      slider("layers", steps(layers, 1, 24), (layers) => change({ layers })),
      slider("width", steps(width, 32, 1024), (width) => change({ width })),
      slider("length", steps(tokens, 16, 2047), (tokens) => change({ tokens })),
    );
  }

  back.addEventListener("click", () => {
    setKnobs();
    change({ layers, width, tokens });
    plot.focus();
  });
  pointable(plot, (x) => scale.place(x), () => state.place, (place) => change({ place }));
  const key = make("p", { className: "key" }, ...WAYS.map((way) => make("span", { className: way }, `${way} a cache`)));
  key.append(make("small", {}, "Point at a position, or press the arrow keys."));
  setKnobs();
  stage.append(knobs, key, plot, told, back, note);
  onWidth(plot, draw);
  change({});
};
