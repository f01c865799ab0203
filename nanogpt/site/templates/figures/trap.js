// A few ways to break a cache, one at a time: the positions and the mask that the code really used
// on a short text, and the text that it generated in this run, below the correct one.
FIGURES.trap = (data, stage) => {
  const LEFT = 78;
  const TOP = 74;
  const WIDE = 40; // characters of a line of text
  const WHY = {
    a: "a later key is visible", o: "keys of another text are visible", t: "a token is visible twice",
    p: "the position is wrong", u: "an earlier key is hidden",
  };
  const LEGEND = "Blue: the query sees the key. Grey: it is hidden. Crossed: wrong. " +
    "4≠3: the code says position 4, but the token is at 3.";
  const state = { on: 0, row: 0 };
  const most = (part) => Math.max(...data.traps.map(({ grid }) => grid[part].length));
  let cell = 0;

  const trap = () => data.traps[state.on];
  const wrongs = (row) => [...row].filter((letter) => WHY[letter]);
  const off = ([, position, place]) => (place !== null && position !== place ? "off" : "");

  function square(letter, i, j) {
    const [x, y] = [LEFT + j * cell, TOP + i * cell];
    const look = WHY[letter] ? "wrong" : letter === "." ? "seen" : "unseen";
    const box = { x: x + 1, y: y + 1, width: cell - 2, height: cell - 2, rx: 2 };
    const rect = svg("rect", { ...box, class: look, "data-cell": letter });
    const d = `M${x + 5} ${y + 5}l${cell - 10} ${cell - 10}m0 ${10 - cell}l${10 - cell} ${cell - 10}`;
    return WHY[letter] ? [rect, svg("path", { class: "cross", d })] : rect;
  }

  // A key: its character, the position used in the code, and its index in the text if that differs.
  function column(key, j) {
    const x = LEFT + (j + 0.5) * cell;
    const [char, position, place] = key;
    const below = place === null ? "old" : off(key) && `≠${place}`;
    return [
      written(visible(char), x, TOP - 46, { class: "char" }),
      written(position, x, TOP - 28, { class: off(key) }),
      written(below, x, TOP - 12, { class: off(key) || "soft" })];
  }

  function line(query, i) {
    const y = TOP + (i + 0.5) * cell;
    const [char, position, place] = query;
    const beside = off(query) ? `${position}≠${place}` : position;
    return [
      written(visible(char), 28, y, { class: "char" }),
      written(beside, LEFT - 8, y, { anchor: "end", class: off(query) })];
  }

  function draw(width) {
    const { queries, keys, cells } = trap().grid;
    cell = Math.min(34, Math.floor((width - LEFT - 4) / most("keys")));
    const middle = TOP + (queries.length * cell) / 2;
    const row = { y: TOP + state.row * cell - 1, width: LEFT - 14 + keys.length * cell, height: cell + 2 };
    return [TOP + most("queries") * cell + 6,
      written("keys in the cache, and their positions", LEFT, 8, { anchor: "start", class: "soft" }),
      written("queries", 8, middle, { class: "soft", transform: `rotate(-90 8 ${middle})` }),
      svg("rect", { class: "picked", x: 16, rx: 4, ...row }),
      keys.map(column),
      queries.map(line),
      cells.map((letters, i) => [...letters].map((letter, j) => square(letter, i, j)))];
  }

  // The true text with the generated one below each line; differences are struck out.
  function compare() {
    const differs = (i) => trap().text[i] !== data.truth[i];
    const shown = (i) => make(differs(i) ? "del" : "span", {}, visible(trap().text[i]));
    const places = [...data.truth].map((_, i) => i);
    const lines = [];
    for (let start = 0; start < places.length; start += WIDE) {
      const here = places.slice(start, start + WIDE);
      lines.push(make("div", { className: "true" }, ...here.map((i) => visible(data.truth[i]))));
      lines.push(make("div", { className: "writes" }, ...here.map(shown)));
    }
    text.replaceChildren(...lines);
    return places.filter(differs).length;
  }

  function tell(differing) {
    const { queries, keys, cells } = trap().grid;
    const [char, position, place] = queries[state.row];
    const wrong = wrongs(cells[state.row]);
    const reasons = [...new Set(wrong)].map((letter) => WHY[letter]).join(", ");
    const stands = position === place ? `position ${position}` : `position ${place}, but the code says ${position}`;
    const said = wrong.length ? `${wrong.length} of ${keys.length} cells wrong: ${reasons}` : "all cells correct";
    told.textContent = `${trap().name}: ${differing} of ${data.truth.length} characters differ. ` +
      `The query of ${quoted(char)}, at ${stands}: ${said}.`;
  }

  function show() {
    tell(compare());
    say();
    picture.again();
  }

  const told = make("p", { className: "told", ariaLive: "polite" });
  const text = make("div", { className: "pairs" });
  const words = make("p", { className: "title" }, "The true text, with the generated one below each line");
  const knob = radios("switch on", data.traps.map(({ name }, i) => [i, name]), 0, (on) => {
    state.on = on;
    const first = trap().grid.cells.findIndex((row) => wrongs(row).length);
    state.row = Math.max(0, first); // the first row in which something is wrong
    show();
  });
  const boxes = [make("div"), make("div", {}, words, text)];
  stage.append(knob, make("div", { className: "sides" }, ...boxes), told);
  const picture = drawing(boxes[0], draw);
  boxes[0].append(make("p", { className: "title" }, LEGEND));
  const say = rowPicker(picture.canvas, "queries", () => {
    const { queries } = trap().grid;
    return { top: TOP, high: cell, count: queries.length, at: state.row, words: quoted(queries[state.row][0]) };
  }, (row) => {
    state.row = row;
    show();
  });
  show();
};
