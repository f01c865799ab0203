// What figures draw in SVG, and how they start.

// An element of SVG. Attributes whose value is null are left out.
function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null) element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

// A drawing as wide as the stage, in pixels of the page, so that words keep their size on a phone:
// draw(width) returns [height, ...elements]. Returns a function that draws again.
function drawing(box, draw) {
  const canvas = svg("svg");
  let width = 0;
  const again = () => {
    if (!width) return; // not on a page yet
    const [height, ...elements] = draw(width);
    canvas.setAttribute("viewBox", `0 0 ${width} ${height}`);
    canvas.replaceChildren(...elements.flat(Infinity));
  };
  new ResizeObserver(([entry]) => {
    const now = Math.floor(entry.contentRect.width);
    if (now === width || now < 200) return; // narrower for a moment: a window that changes its size
    width = now;
    again();
  }).observe(box);
  box.append(canvas);
  return { canvas, again };
}

// The rows of a drawing, picked by the pointer and by the arrow keys, as a slider that stands upright.
// rows() says where they are: { top, high, count, at, words }; pick(row) is called with another one.
function rowPicker(canvas, name, rows, pick) {
  const keys = { ArrowUp: (at) => at - 1, ArrowDown: (at) => at + 1, Home: () => 0, End: () => Infinity };
  const to = (row) => {
    const { count, at } = rows();
    const next = Math.max(0, Math.min(count - 1, row));
    if (next !== at) pick(next);
  };
  const say = () => {
    const { count, at, words } = rows();
    const state = { valuemin: 1, valuemax: count, valuenow: at + 1, valuetext: words };
    for (const [part, value] of Object.entries(state)) canvas.setAttribute(`aria-${part}`, value);
  };
  const fixed = { tabindex: 0, role: "slider", "aria-label": name, "aria-orientation": "vertical" };
  for (const [attribute, value] of Object.entries(fixed)) canvas.setAttribute(attribute, value);
  canvas.addEventListener("keydown", (event) => {
    if (!keys[event.key]) return;
    event.preventDefault(); // the page stays where it is
    to(keys[event.key](rows().at));
  });
  const pointed = (event) => {
    const { top, high, count } = rows();
    const row = Math.floor((event.clientY - canvas.getBoundingClientRect().top - top) / high);
    if (row >= 0 && row < count) to(row);
  };
  canvas.addEventListener("pointermove", pointed);
  canvas.addEventListener("pointerdown", pointed);
  return say;
}

// Words in a drawing, centred unless `anchor` says otherwise.
function written(text, x, y, { anchor = "middle", ...more } = {}) {
  return svg("text", { x, y, "text-anchor": anchor, "dominant-baseline": "central", ...more }, text);
}

// A pattern of slanted lines: fill="url(#id)".
function hatch(id) {
  const size = { width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" };
  return svg("defs", {}, svg("pattern", { id, ...size }, svg("line", { class: "hatch", y2: 6 })));
}

// Round numbers from 0 up to `most`, about four of them.
function ticks(most) {
  const power = 10 ** Math.floor(Math.log10(most / 4));
  const step = [1, 2, 5, 10].map((n) => n * power).find((n) => most / n < 5);
  return Array.from({ length: Math.floor(most / step) + 1 }, (_, i) => i * step);
}

// Calls draw(width) now and whenever the width of the element changes, so that words in an SVG that
// is as wide keep their size.
function onWidth(element, draw) {
  new ResizeObserver(() => element.clientWidth && draw(element.clientWidth)).observe(element);
}

// Lets a pointer and the keys of a slider set a place along an element: `at` is the place under so
// many pixels from its left edge, `now` where it stands, and `go` goes to one, in range or not.
function pointable(element, at, now, go) {
  for (const event of ["pointermove", "pointerdown"]) {
    element.addEventListener(event, ({ clientX }) => go(at(clientX - element.getBoundingClientRect().left)));
  }
  const less = { ArrowLeft: 1, ArrowDown: 1, PageDown: 10, Home: Infinity };
  const more = { ArrowRight: 1, ArrowUp: 1, PageUp: 10, End: Infinity };
  element.addEventListener("keydown", (event) => {
    const by = (more[event.key] ?? 0) - (less[event.key] ?? 0);
    if (!by) return;
    event.preventDefault();
    go(now() + by);
  });
}

function startFigures() {
  for (const figure of document.querySelectorAll("figure.moving")) {
    const stage = make("div", { className: "stage" });
    stage.setAttribute("role", "group");
    stage.setAttribute("aria-label", figure.querySelector("img").alt);
    FIGURES[figure.dataset.kind](JSON.parse(figure.querySelector("script").textContent), stage);
    figure.prepend(stage);
    figure.classList.add("alive");
  }
}
