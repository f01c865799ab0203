// Copies code, enlarges figures, searches. Pages can be read without it, and it loads nothing.

// Copy: a button on each block of code.
async function copy(code) {
  try {
    await navigator.clipboard.writeText(code.textContent);
  } catch {
    getSelection().selectAllChildren(code); // an older browser, or one that asks before it copies
    if (!document.execCommand("copy")) return "Selected";
  }
  return "Copied";
}
for (const box of document.querySelectorAll(".listing")) {
  const button = make("button", { type: "button", className: "copy", ariaLive: "polite" }, "Copy");
  button.addEventListener("click", async () => {
    button.textContent = await copy(box.querySelector("code"));
    setTimeout(() => (button.textContent = "Copy"), 2000);
  });
  box.append(button);
}

// Scroll: a box that is wider than the page takes the keyboard, so that its end is in reach.
function reach() {
  for (const box of document.querySelectorAll("pre, .table")) {
    if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
  }
}
reach();
addEventListener("resize", reach);
document.addEventListener("toggle", reach, true); // a fold opens

// Enlarge: each figure becomes a button that shows it as large as the window, or life-size.
function enlarge(image) {
  const large = make("img", { src: image.currentSrc || image.src, alt: image.alt });
  large.className = image.className;
  large.style.setProperty("--natural", `${image.naturalWidth}px`);
  large.style.setProperty("--ratio", image.naturalWidth / image.naturalHeight);
  const close = make("button", { type: "button", className: "close" }, "Close");
  const dialog = make("dialog", { className: "large", ariaLabel: "Enlarged figure" }, close, large);
  dialog.addEventListener("click", () => dialog.close());
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}
for (const figure of document.querySelectorAll("figure:not(.moving)")) {
  const button = make("button", { type: "button", className: "enlarge", title: "Enlarge" });
  button.append(...figure.childNodes);
  button.addEventListener("click", () => enlarge(button.querySelector("img")));
  figure.append(button);
}

// Grow: the frame of a figure becomes as high as the figure says that it is.
for (const frame of document.querySelectorAll(".grows")) {
  addEventListener("message", ({ source, data }) => {
    if (source === frame.contentWindow) frame.style.height = `${data.height}px`;
  });
}

// Search: sections in which every word occurs, those with the words in their heading first.
function found(rows, query) {
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  if (!words.length) return [];
  const score = ([, title, , heading, text, names]) => {
    const parts = [[heading, 9], [title, 3], [text, 1], [names, 1]];
    const weights = parts.map(([part, weight]) => [part.toLowerCase(), weight]);
    const each = words.map((word) =>
      weights.reduce((sum, [part, weight]) => sum + (part.includes(word) ? weight : 0), 0));
    return each.includes(0) ? 0 : each.reduce((a, b) => a + b);
  };
  const scored = rows.map((row) => ({ row, score: score(row), words })).filter((hit) => hit.score);
  return scored.sort((a, b) => b.score - a.score);
}
function marked(text, words) {
  const safe = words.map((word) => word.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"));
  const parts = text.split(new RegExp(`(${safe.join("|")})`, "gi"));
  return parts.map((part, i) => (i % 2 ? make("mark", {}, part) : part));
}
function excerpt(text, words) {
  const places = words.map((word) => text.toLowerCase().indexOf(word)).filter((i) => i > 100);
  const start = places.length ? text.indexOf(" ", Math.min(...places) - 50) + 1 : 0;
  const end = start + 160 < text.length ? text.lastIndexOf(" ", start + 160) : text.length;
  const part = text.slice(start, end);
  return [start ? "… " : "", ...marked(part, words), end < text.length ? " …" : ""];
}
function result({ row: [page, title, id, heading, text, names], words }) {
  const link = make("a", { href: `${page}.html#${id}` }, ...marked(heading, words));
  const from = make("span", { className: "meta" }, title);
  const inCode = names.split(" ").filter((name) => words.some((w) => name.toLowerCase().includes(w)));
  const code = inCode.slice(0, 6).map((name) => make("code", {}, name));
  return make("li", {}, link, from, make("p", {}, ...excerpt(text, words)), ...code);
}
const index = document.getElementById("search-index");
for (const form of document.querySelectorAll("form.search")) form.hidden = false;
if (index) {
  const rows = JSON.parse(index.textContent), field = document.querySelector(".search input");
  const list = document.getElementById("results"), count = document.getElementById("count");
  const search = () => {
    const hits = found(rows, field.value), asked = field.value.trim() !== "";
    list.replaceChildren(...hits.slice(0, 30).map(result));
    const sections = hits.length === 1 ? "1 section" : `${hits.length || "No"} sections`;
    count.textContent = asked ? `${sections} with “${field.value.trim()}”` : "";
    document.getElementById("start").hidden = asked;
  };
  field.value = new URLSearchParams(location.search).get("q") || field.value;
  field.addEventListener("input", search);
  field.form.addEventListener("submit", (event) => {
    event.preventDefault();
    list.querySelector("a")?.focus();
  });
  search();
}
