// Figures that react to a hand. Each kind is a file in figures/: it puts a function of (data, stage)
// into FIGURES, which draws into the stage from the data that the run has saved. The still stays in
// the page for print, and for where a script fails.
const FIGURES = {};

// An element of SVG. Attributes whose value is null are left out.
function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null) element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

// A labelled slider over whole numbers, and the number that it stands at.
function slider(words, { min, max, value, step = 1 }, change) {
  const shown = make("output", {}, String(value));
  const input = make("input", { type: "range", min, max, step, value });
  input.addEventListener("input", () => {
    shown.textContent = input.value;
    change(Number(input.value));
  });
  return make("label", { className: "knob" }, make("span", {}, words, " ", shown), input);
}

// Moves a slider without asking what it changes.
function slideTo(knob, value) {
  knob.querySelector("input").value = value;
  knob.querySelector("output").textContent = value;
}

// A labelled choice of one out of a few: options are [value, words].
function choice(words, options, value, change) {
  const select = make("select", {});
  for (const [option, name] of options) {
    select.append(make("option", { value: option, selected: option === value }, name));
  }
  select.addEventListener("change", () => change(options[select.selectedIndex][0]));
  return make("label", { className: "knob" }, make("span", {}, words), select);
}

// A labelled choice of one out of a few as radio buttons: options are [value, words].
let groups = 0;
function radios(words, options, value, change) {
  const name = `radios-${(groups += 1)}`;
  const buttons = options.map(([option, text]) => {
    const input = make("input", { type: "radio", name, value: option, checked: option === value });
    input.addEventListener("change", () => change(option));
    return make("label", {}, input, " ", text);
  });
  return make("fieldset", { className: "radios" }, make("legend", {}, words), ...buttons);
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

// A character of a text, blanks made visible; and the same in quotes.
const visible = (char) => ({ "\n": "↵", " ": "␣" })[char] ?? char;
const quoted = (char) => `“${visible(char)}”`;

function share(weight) {
  return weight < 0.005 ? "<1%" : `${Math.round(100 * weight)}%`;
}

// A number of a figure in words, with separators between thousands.
function grouped(number) {
  return Math.round(number).toLocaleString("en");
}

// A ratio in words: 2.4×, and from 20 on without decimals.
function times(ratio) {
  return `${ratio < 20 ? ratio.toFixed(1) : grouped(ratio)}×`;
}

// Seconds in words, to three digits.
function duration(seconds) {
  if (!seconds) return "0\u00a0µs";
  const [unit, name] = seconds < 1e-3 ? [1e6, "µs"] : [1e3, "ms"];
  return `${(seconds * unit).toLocaleString("en", { minimumSignificantDigits: 3, maximumSignificantDigits: 3 })}\u00a0${name}`;
}

// A large number in words: 34.71 billion.
function inWords(number) {
  if (number < 1e6) return grouped(number);
  const how = { notation: "compact", compactDisplay: "long", maximumSignificantDigits: 4 };
  return number.toLocaleString("en", how);
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
