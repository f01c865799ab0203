// A few ways to break a cache, one switched on at a time: the positions and the mask that the code
// really used, over a short text, and the text that it wrote in this run, below the true one.
FIGURES.trap = (data, stage) => {
  const LEFT = 78;
  const TOP = 74;
  const WHY = {
    a: "a later key is seen", o: "keys of another text are seen", t: "a token is seen twice",
    p: "position and place differ", u: "an earlier key is hidden",
  };
  const state = { on: 0, row: 0 };
  const trap = () => data.traps[state.on];
  let cell = 0;

  const wrongs = (row) => [...row].filter((letter) => WHY[letter]);
  const off = ([, position, place]) => place !== null && position !== place;

  function square(letter, i, j) {
    const [x, y] = [LEFT + j * cell, TOP + i * cell];
    const look = WHY[letter] ? "wrong" : letter === "." ? "seen" : "unseen";
    const box = svg("rect", { class: look, "data-cell": letter, x: x + 1, y: y + 1, width: cell - 2, height: cell - 2, rx: 2 });
    if (!WHY[letter]) return box;
    const cross = `M${x + 5} ${y + 5}L${x + cell - 5} ${y + cell - 5}M${x + cell - 5} ${y + 5}L${x + 5} ${y + cell - 5}`;
    return [box, svg("path", { class: "cross", d: cross })];
  }

  // A key: its character, the position that the code gave it, and its own where that is another.
  function column(key, j) {
    const x = LEFT + (j + 0.5) * cell;
    const wrong = off(key) ? "off" : "";
    const place = key[2] === null ? "old" : wrong ? `≠${key[2]}` : "";
    return [written(visible(key[0]), x, TOP - 46, { class: "char" }), written(key[1], x, TOP - 28, { class: wrong }), written(place, x, TOP - 12, { class: wrong || "soft" })];
  }

  function line(query, i) {
    const y = TOP + (i + 0.5) * cell;
    const wrong = off(query) ? "off" : "";
    const words = `${query[1]}${wrong ? `≠${query[2]}` : ""}`;
    return [written(visible(query[0]), 28, y, { class: "char" }), written(words, LEFT - 8, y, { anchor: "end", class: wrong })];
  }

  function draw(width) {
    const { queries, keys, cells } = trap().grid;
    cell = Math.min(34, Math.floor((width - LEFT - 4) / Math.max(...data.traps.map((one) => one.grid.keys.length))));
    const side = queries.length * cell;
    const picked = { class: "picked", x: 16, y: TOP + state.row * cell - 1, width: LEFT - 14 + keys.length * cell, height: cell + 2, rx: 4 };
    return [TOP + Math.max(...data.traps.map((one) => one.grid.queries.length)) * cell + 6,
      written("keys in the cache, and their positions", LEFT, 8, { anchor: "start", class: "soft" }),
      written("queries", 8, TOP + side / 2, { class: "soft", transform: `rotate(-90 8 ${TOP + side / 2})` }),
      svg("rect", picked),
      keys.map(column), queries.map(line),
      cells.map((row, i) => [...row].map((letter, j) => square(letter, i, j)))];
  }

  // The true text and what was written, line below line; what differs is struck out.
  function compare() {
    const WIDE = 40;
    const differs = (i) => trap().text[i] !== data.truth[i];
    const shown = (text, i) => make(text === trap().text && differs(i) ? "del" : "span", {}, visible(text[i]));
    const lines = [];
    for (let start = 0; start < data.truth.length; start += WIDE) {
      const places = [...data.truth.slice(start, start + WIDE)].map((_, i) => start + i);
      lines.push(make("div", { className: "true" }, ...places.map((i) => visible(data.truth[i]))));
      lines.push(make("div", { className: "writes" }, ...places.map((i) => shown(trap().text, i))));
    }
    text.replaceChildren(...lines);
    return [...data.truth].filter((_, i) => differs(i)).length;
  }

  function tell(many) {
    const { queries, keys, cells } = trap().grid;
    const [char, position, place] = queries[state.row];
    const reasons = [...new Set(wrongs(cells[state.row]))].map((letter) => WHY[letter]);
    const says = position === place ? `at position ${position}` : `at place ${place}, where the code says ${position}`;
    const wrong = wrongs(cells[state.row]).length;
    told.textContent = `${trap().name}: ${many} of ${data.truth.length} characters differ. ` +
      `The query of ${quoted(char)}, ${says}: ${wrong ? `${wrong} of ${keys.length} cells wrong: ${reasons.join(", ")}` : "every cell right"}.`;
  }

  function show() {
    tell(compare());
    say();
    again();
  }

  const told = make("p", { className: "told", ariaLive: "polite" });
  const text = make("div", { className: "pairs" });
  const options = data.traps.map(({ name }, i) => [i, name]);
  const knob = radios("switch on", options, 0, (on) => {
    state.on = on;
    const wrong = trap().grid.cells.findIndex((row) => wrongs(row).length);
    state.row = Math.max(0, wrong); // the first row in which something is wrong
    show();
  });
  const legend = make("p", { className: "title" }, "Blue: the query sees the key. Grey: it is hidden. Crossed: wrong. 4≠3: the code says position 4, and the place in the text is 3.");
  const boxes = [make("div"), make("div", {}, make("p", { className: "title" }, "The true text, and below each line the one written"), text)];
  stage.append(knob, make("div", { className: "sides" }, ...boxes), told);
  const { canvas, again } = drawing(boxes[0], draw);
  boxes[0].append(legend);
  const say = rowPicker(canvas, "queries", () => ({ top: TOP, high: cell, count: trap().grid.queries.length, at: state.row, words: quoted(trap().grid.queries[state.row][0]) }), (row) => {
    state.row = row;
    show();
  });
  show();
};
