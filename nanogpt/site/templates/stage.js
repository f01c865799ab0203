// Figures that react to a hand. Each kind is a file in figures/: it puts a function of (data, stage)
// into FIGURES, which draws into the stage from the data that the run has saved. The still stays in
// the page for print, and for where a script fails.
const FIGURES = {};

// A labelled slider over whole numbers, and the number that it stands at. The label names its input: else it would
// belong to the output, which comes first in it.
let sliders = 0;
function slider(words, { min, max, value, step = 1 }, change) {
  const shown = make("output", {}, String(value));
  const id = `slider-${(sliders += 1)}`;
  const input = make("input", { type: "range", id, min, max, step, value });
  input.addEventListener("input", () => {
    shown.textContent = input.value;
    change(Number(input.value));
  });
  return make("label", { className: "knob", htmlFor: id }, make("span", {}, words, " ", shown), input);
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
