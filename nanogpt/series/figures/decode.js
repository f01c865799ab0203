// One decode step: the query of the newest character meets the key of each, and the weights mix the
// values. A row is a character; its key and its value are bars, one a number, up where it is positive.
FIGURES.decode = (data, stage) => {
  const HIGH = 22;
  const TOP = 62;
  const n = data.chars.length;
  const layers = data.weights.map((_, i) => [i, `layer ${i}`]);
  const heads = data.weights[0].map((_, i) => [i, `head ${i}`]);
  const state = { newest: n - 1, layer: 0, head: 0, picked: 0 };
  let drawn = n - 1; // the newest row that has been drawn: another one arrives

  const of = (name) => data[name][state.layer][state.head];
  const largest = (name) => Math.max(...of(name).flat().map(Math.abs)) || 1;
  const weights = () => of("weights")[state.newest];
  const kind = (row) => (row === state.newest ? "now" : "kept");
  state.picked = weights().indexOf(Math.max(...weights().slice(0, -1)));

  // The numbers of a vector as bars around a line.
  function bars(numbers, name, x, y, wide) {
    const one = (wide - 4) / numbers.length;
    const scale = (HIGH / 2 - 2) / largest(name);
    return numbers.map((number, i) => {
      const high = Math.max(0.5, Math.abs(number) * scale);
      return svg("rect", { x: x + 3 + i * one, y: number > 0 ? y - high : y, width: one - 2, height: high });
    });
  }

  function vector(numbers, name, look, x, row, wide) {
    const y = TOP + (row + 0.5) * HIGH;
    const box = svg("rect", { class: "box", x, y: y - HIGH / 2 + 1, width: wide, height: HIGH - 2, rx: 3 });
    return svg("g", { class: `vector ${look}` }, box, ...bars(numbers, name, x, y, wide));
  }

  function row(i, at) {
    const y = TOP + (i + 0.5) * HIGH;
    if (i > state.newest) {
      return svg("line", { class: "empty", x1: 8, x2: at.value + at.wide, y1: y, y2: y });
    }
    const weight = weights()[i];
    const marks = [kind(i), i === state.picked ? "picked" : "", i === state.newest && i > drawn ? "arrives" : ""];
    return svg("g", { class: `row ${marks.join(" ")}`, "data-row": i },
      written(i, 14, y, { anchor: "end", class: "soft" }),
      written(visible(data.chars[i]), at.char, y, { class: "char" }),
      vector(of("keys")[i], "keys", kind(i), at.key, i, at.wide),
      svg("rect", { class: "box", x: at.weight, y: y - 6, width: at.bar, height: 12 }),
      svg("rect", { class: "weight", x: at.weight, y: y - 6, width: weight * at.bar, height: 12 }),
      written(share(weight), at.value - 10, y, { anchor: "end", class: "share" }),
      vector(of("values")[i], "values", kind(i), at.value, i, at.wide));
  }

  // What the cache holds when the step begins: the rows above the newest.
  function cached(x, wide) {
    return svg("rect", { class: "cache", x: x - 3, y: TOP - 1, width: wide + 6, height: state.newest * HIGH + 2, rx: 5 });
  }

  // The mix of the values, as far as their numbers are shown.
  function mixed() {
    const values = of("values");
    return values[0].map((_, j) => weights().reduce((sum, weight, i) => sum + weight * values[i][j], 0));
  }

  function table(width) {
    const wide = Math.min(150, width * 0.21);
    const at = { char: 25, key: 40, weight: 52 + wide, value: width - wide, wide };
    at.bar = at.value - at.weight - 48;
    const middle = (x) => x + wide / 2;
    const end = TOP + n * HIGH + 24;
    const columns = [["keys", middle(at.key)], ["weights", at.weight + at.bar / 2], ["values", middle(at.value)]];
    return [end + 16,
      vector(of("queries")[state.newest], "queries", "now query", at.key, -2.2, wide),
      written(`query of ${quoted(data.chars[state.newest])}, this step only`, at.weight, TOP - 1.7 * HIGH, { anchor: "start" }),
      columns.map(([text, x]) => written(text, x, TOP - 11, { class: "soft" })),
      [...data.chars].map((_, i) => row(i, at)),
      state.newest ? [cached(at.key, wide), cached(at.value, wide)] : [],
      written("output: the mix of values", at.value - 8, end, { anchor: "end" }),
      vector(mixed(), "values", "now output", at.value, (end - TOP) / HIGH - 0.5, wide)];
  }

  // The weight of the picked character in every head: a row of bars for each layer.
  function everywhere(width) {
    const high = 58;
    const wide = Math.min(64, (width - 52) / heads.length);
    const cell = (layer, head) => {
      const weight = data.weights[layer][head][state.newest][state.picked];
      const x = 52 + head * wide;
      const y = 18 + layer * high;
      const chosen = layer === state.layer && head === state.head ? "chosen" : "";
      const tall = weight * (high - 26);
      const group = svg("g", { class: `one ${chosen} ${kind(state.picked)}`, "data-head": `${layer},${head}` },
        svg("rect", { class: "box", x: x + 1, y: y + 1, width: wide - 2, height: high - 4, rx: 3 }),
        svg("rect", { class: "weight", x: x + 3, y: y + high - 5 - tall, width: wide - 6, height: tall }),
        written(share(weight), x + wide / 2, y + 12));
      group.addEventListener("click", () => {
        Object.assign(state, { layer, head });
        knobs.forEach((knob, i) => (knob.querySelector("select").selectedIndex = [layer, head][i]));
        show();
      });
      return group;
    };
    return [20 + layers.length * high,
      heads.map(([head, name]) => written(name, 52 + (head + 0.5) * wide, 8, { class: "soft" })),
      layers.map(([layer, name]) => written(name, 0, 18 + (layer + 0.5) * high, { anchor: "start", class: "soft" })),
      layers.map(([layer]) => heads.map(([head]) => cell(layer, head)))];
  }

  function tell() {
    const { newest, picked, layer, head } = state;
    const [asks, gives] = [newest, picked].map((i) => quoted(data.chars[i]));
    const from = picked === newest ? "Both are new, and written to the cache." : `Both come from the cache, where step ${picked} wrote them.`;
    told.textContent = `Step ${newest}: ${asks} asks. In layer ${layer}, head ${head}, the key of ${gives} (position ${picked}) earns ` +
      `${share(weights()[picked])} for its value. ${from} Computed in this step, in each head: 1 key and 1 value; without a cache, ${newest + 1} of each.`;
    title.textContent = `The weight of ${gives}, position ${picked}, in each head`;
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
  const knobs = [choice("layer", layers, state.layer, set("layer")), choice("head", heads, state.head, set("head"))];
  const step = slider("newest position", { min: 0, max: n - 1, value: n - 1 }, set("newest"));
  const told = make("p", { className: "told", ariaLive: "polite" });
  const title = make("p", { className: "title" });
  const boxes = [make("div"), make("div", {}, title)];
  stage.append(make("div", { className: "knobs" }, step, ...knobs), make("div", { className: "sides" }, ...boxes));
  const left = drawing(boxes[0], table);
  boxes[0].append(told);
  const right = drawing(boxes[1], everywhere);
  const rows = () => ({ top: TOP, high: HIGH, count: state.newest + 1, at: state.picked, words: `${quoted(data.chars[state.picked])}, position ${state.picked}` });
  const say = rowPicker(left.canvas, "characters read so far", rows, set("picked"));
  show();
};
