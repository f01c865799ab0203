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

// A labelled choice of one out of a few: options are [value, words].
function choice(words, options, value, change) {
  const select = make("select", {});
  for (const [option, name] of options) {
    select.append(make("option", { value: option, selected: option === value }, name));
  }
  select.addEventListener("change", () => change(options[select.selectedIndex][0]));
  return make("label", { className: "knob" }, make("span", {}, words), select);
}

// A number of a figure in words, with separators between thousands.
function grouped(number) {
  return Math.round(number).toLocaleString("en");
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
