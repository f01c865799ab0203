// One decode step: the newest character's query is compared with every key, and the weights mix the
// values. A row is a character. A vector is drawn as bars, one per number, up if it is positive.
FIGURES.decode = (data, stage) => {
  const HIGH = 22; // of a row, in pixels
  const TOP = 62; // where the rows begin
  const n = data.chars.length;
  const layers = data.weights.map((_, i) => [i, `layer ${i}`]);
  const heads = data.weights[0].map((_, i) => [i, `head ${i}`]);
  const state = { newest: n - 1, layer: 0, head: 0, picked: 0 };
  let drawn = n - 1; // the newest row drawn so far: a later one is animated

  const of = (name) => data[name][state.layer][state.head];
  const weights = () => of("weights")[state.newest];
  const look = (row) => (row === state.newest ? "now" : "kept");
  const char = (row) => quoted(data.chars[row]);
  state.picked = weights().indexOf(Math.max(...weights().slice(0, -1)));

  // The numbers of a vector as bars around the middle of its box, the largest of its kind the longest.
  function vector(name, numbers, kind, x, y, width) {
    const wide = (width - 4) / numbers.length;
    const scale = (HIGH / 2 - 2) / (Math.max(...of(name).flat().map(Math.abs)) || 1);
    const box = { class: "box", x, y: y - HIGH / 2 + 1, width, height: HIGH - 2, rx: 3 };
    const bars = numbers.map((number, i) => {
      const height = Math.max(0.5, Math.abs(number) * scale);
      return svg("rect", { x: x + 3 + i * wide, y: number > 0 ? y - height : y, width: wide - 2, height });
    });
    return svg("g", { class: `vector ${kind}` }, svg("rect", box), ...bars);
  }

  function row(i, at) {
    const y = TOP + (i + 0.5) * HIGH;
    if (i > state.newest) return svg("line", { class: "empty", x1: 8, x2: at.value + at.wide, y1: y, y2: y });
    const weight = weights()[i];
    const bar = { x: at.weight, y: y - 6, height: 12 };
    const arrives = i === state.newest && i > drawn;
    const kinds = ["row", look(i), i === state.picked ? "picked" : "", arrives ? "arrives" : ""];
    return svg("g", { class: kinds.join(" "), "data-row": i },
      written(i, 14, y, { anchor: "end", class: "soft" }),
      written(visible(data.chars[i]), at.char, y, { class: "char" }),
      vector("keys", of("keys")[i], look(i), at.key, y, at.wide),
      svg("rect", { ...bar, class: "box", width: at.bar }),
      svg("rect", { ...bar, class: "weight", width: weight * at.bar }),
      written(share(weight), at.value - 10, y, { anchor: "end", class: "share" }),
      vector("values", of("values")[i], look(i), at.value, y, at.wide));
  }

  // The contents of the cache at the start of the step: all rows but the newest.
  function cached(x, wide) {
    const box = { x: x - 3, y: TOP - 1, width: wide + 6, height: state.newest * HIGH + 2, rx: 5 };
    return state.newest ? svg("rect", { class: "cache", ...box }) : [];
  }

  // The mix of the values, as far as their numbers are in the data.
  function mixed() {
    const values = of("values");
    return values[0].map((_, j) => weights().reduce((sum, weight, i) => sum + weight * values[i][j], 0));
  }

  function table(width) {
    const wide = Math.min(150, width * 0.21);
    const at = { char: 25, key: 40, weight: 52 + wide, value: width - wide, wide };
    at.bar = at.value - at.weight - 48;
    const [above, below] = [TOP - 1.7 * HIGH, TOP + (n + 1.1) * HIGH];
    const columns = { keys: at.key + wide / 2, weights: at.weight + at.bar / 2, values: at.value + wide / 2 };
    return [below + 16,
      vector("queries", of("queries")[state.newest], "now", at.key, above, wide),
      written(`query of ${char(state.newest)}, this step only`, at.weight, above, { anchor: "start" }),
      Object.entries(columns).map(([name, x]) => written(name, x, TOP - 11, { class: "soft" })),
      [...data.chars].map((_, i) => row(i, at)),
      cached(at.key, wide), cached(at.value, wide),
      written("output: the weighted mix of values", at.value - 8, below, { anchor: "end" }),
      vector("values", mixed(), "now", at.value, below, wide)];
  }

  // The weight of the picked character in one head; a click chooses that head.
  function one(layer, head, x, y, wide, high) {
    const weight = data.weights[layer][head][state.newest][state.picked];
    const height = weight * (high - 26);
    const chosen = layer === state.layer && head === state.head ? "chosen" : "";
    const group = svg("g", { class: `one ${chosen} ${look(state.picked)}`, "data-head": `${layer},${head}` },
      svg("rect", { class: "box", x: x + 1, y: y + 1, width: wide - 2, height: high - 4, rx: 3 }),
      svg("rect", { class: "weight", x: x + 3, y: y + high - 5 - height, width: wide - 6, height }),
      written(share(weight), x + wide / 2, y + 12));
    group.addEventListener("click", () => {
      Object.assign(state, { layer, head });
      knobs.forEach((knob, i) => (knob.querySelector("select").selectedIndex = [layer, head][i]));
      show();
    });
    return group;
  }

  // A row of bars for each layer, a bar for each head.
  function everywhere(width) {
    const [left, top, high] = [52, 18, 58];
    const wide = Math.min(64, (width - left) / heads.length);
    const middle = (i, from, size) => from + (i + 0.5) * size;
    return [top + 2 + layers.length * high,
      heads.map(([i, name]) => written(name, middle(i, left, wide), 8, { class: "soft" })),
      layers.map(([i, name]) => written(name, 0, middle(i, top, high), { anchor: "start", class: "soft" })),
      layers.map(([i]) => heads.map(([j]) => one(i, j, left + j * wide, top + i * high, wide, high)))];
  }

  function tell() {
    const { newest, picked, layer, head } = state;
    const old = `Both come from the cache, where step ${picked} wrote them.`;
    told.textContent = `Step ${newest}: ${char(newest)} is the query. In layer ${layer}, head ${head}, ` +
      `the key of ${char(picked)} (position ${picked}) gets a weight of ${share(weights()[picked])} for its value. ` +
      `${picked === newest ? "Both are new, and written to the cache." : old} ` +
      `Computed in this step, in each head: 1 key and 1 value; without a cache, ${newest + 1} of each.`;
    title.textContent = `The weight of ${char(picked)}, position ${picked}, in each head`;
  }

  function show() {
    tell();
    say();
    left.again();
    right.again();
    drawn = state.newest;
  }

  const set = (name) => (value) => {
    state[name] = value;
    state.picked = Math.min(state.picked, state.newest);
    show();
  };
  const step = slider("newest position", { min: 0, max: n - 1, value: n - 1 }, set("newest"));
  const knobs = [choice("layer", layers, 0, set("layer")), choice("head", heads, 0, set("head"))];
  const told = make("p", { className: "told", ariaLive: "polite" });
  const title = make("p", { className: "title" });
  const legend = `Bars: the first ${of("keys")[0].length} of ${data.size} numbers of a query, a key or a value, ` +
    "up if positive. Blue: from the cache. Orange: new in this step.";
  const boxes = [make("div"), make("div", {}, title)];
  stage.append(make("div", { className: "knobs" }, step, ...knobs), make("div", { className: "sides" }, ...boxes));
  const left = drawing(boxes[0], table);
  const right = drawing(boxes[1], everywhere);
  boxes[0].append(told);
  boxes[1].append(make("p", { className: "title" }, legend));
  const say = rowPicker(left.canvas, "characters read so far", () => {
    const { newest, picked: at } = state;
    return { top: TOP, high: HIGH, count: newest + 1, at, words: `${char(at)}, position ${at}` };
  }, set("picked"));
  show();
};
