// What the model looked at when it wrote a character: the weights of its heads as a heat behind the text, its
// probabilities in words, and the newest step in numbers.
const HELP = "Point at a generated character, tap it, or move through the text with the arrow keys. The heat map behind the text is what the model attended to when it generated that character.";
let pointed = null; // the written character under the pointer: { lane, i }
let chosen = null; // the one that a tap, a click or a key has chosen; it stays
const shown = () => pointed ?? chosen;
const picks = () => [Number(at("layer").value), at("head").value];
const percent = (x) => (x < 0.001 ? "under 0.1%" : `${short(100 * x)}%`);

function nameOf(token) {
  const character = LIVE.vocabulary[token];
  return { "\n": "a line end", " ": "a space" }[character] ?? `“${character}”`;
}

// The weights of a step in the layer and the head that are picked, or the mean over the layer's heads.
function weightsOf({ looked }) {
  const { n_head } = LIVE.config;
  const [layer, head] = picks();
  const heads = looked.slice(layer * n_head, (layer + 1) * n_head);
  if (head !== "mean") return heads[head];
  return heads[0].map((_, i) => heads.reduce((sum, weights) => sum + weights[i], 0) / n_head);
}

// The heat behind the text, and in words.
function drawLook() {
  for (const lane of LANES) {
    lane.code.classList.toggle("heated", shown()?.lane === lane);
    for (const old of lane.code.querySelectorAll("[style], .picked")) {
      old.removeAttribute("style");
      old.classList.remove("picked");
    }
  }
  const said = shown() ? heat(shown()) : HELP;
  if (at("picked").textContent !== said) at("picked").textContent = said; // read aloud once
}

function heat({ lane, i }) {
  const { places, looked, chances } = lane.decoding.seen[i];
  const weights = weightsOf({ looked });
  const most = Math.max(...weights);
  places.forEach((place, j) => lane.letters[place].style.setProperty("--heat", (weights[j] / most).toFixed(4)));
  lane.letters[lane.prompt + i].classList.add("picked");
  const place = places[weights.indexOf(most)];
  const back = lane.prompt + i - place;
  const [own, ...others] = chances.map(({ token, chance }) => [nameOf(token), percent(chance)]);
  const rivals = others.length ? `The likeliest alternatives: ${others.map((other) => other.join(" ")).join(", ")}.` : "There was no alternative.";
  return `Character ${i + 1}: ${own.join(", with a probability of ")}. ${rivals} Most weight, ${percent(most)}, went to ${nameOf(lane.decoding.text[place])}, ${back} ${back === 1 ? "position" : "positions"} back.`;
}

function point(next) {
  pointed = next;
  drawLook();
}

// The text of a lane is one stop of the Tab key: its box, or the character that is chosen in it.
function choose(lane, i, focus = true) {
  release();
  chosen = { lane, i };
  const letter = lane.letters[lane.prompt + i];
  letter.tabIndex = 0;
  lane.code.tabIndex = -1;
  if (focus) letter.focus();
  else lane.scroll(letter);
  point(null);
}

function release() {
  if (!chosen) return;
  const { lane, i } = chosen;
  lane.letters[lane.prompt + i]?.removeAttribute("tabindex");
  lane.code.tabIndex = 0;
  chosen = null;
}

const lastOf = ({ letters, prompt }) => letters.length - prompt - 1; // of the written characters

// Where a key leads: into the text from outside, along it, or to the nearest character of the next line.
function targetOf(lane, i, key) {
  const last = lastOf(lane);
  const into = { ArrowRight: 0, ArrowDown: 0, Home: 0, ArrowLeft: last, ArrowUp: last, End: last };
  const along = { ArrowRight: Math.min(i + 1, last), ArrowLeft: Math.max(i - 1, 0), Home: 0, End: last };
  if (i === undefined || !(key in into)) return into[key];
  return along[key] ?? nextLine(lane.letters.slice(lane.prompt, lane.prompt + last + 1), i, key === "ArrowUp" ? -1 : 1);
}

function nextLine(letters, i, way) {
  const { offsetTop: top, offsetLeft: left } = letters[i];
  const tops = letters.map((letter) => letter.offsetTop).filter((other) => (other - top) * way > 0);
  const line = way < 0 ? Math.max(...tops) : Math.min(...tops); // infinite where there is none
  const far = (j) => (letters[j].offsetTop === line ? Math.abs(letters[j].offsetLeft - left) : Infinity);
  return [...letters.keys()].reduce((best, j) => (far(j) < far(best) ? j : best), i);
}

function walk(lane, event) {
  if (event.ctrlKey || event.altKey || event.metaKey || event.shiftKey || lastOf(lane) < 0) return;
  if (event.key === "Escape") {
    release();
    lane.code.focus();
    point(null);
    return;
  }
  const next = targetOf(lane, chosen?.lane === lane ? chosen.i : undefined, event.key);
  if (next === undefined) return;
  event.preventDefault();
  choose(lane, next);
}

// One character on or back, for those without arrow keys. The first time it is the last one written.
function move(by) {
  const { lane, i } = chosen ?? { lane: LANES[1], i: Infinity };
  const next = Math.min(Math.max(i + by, 0), lastOf(lane));
  if (next >= 0) choose(lane, next, false);
}

function watch(lane) {
  // The written character that an event is about; null elsewhere.
  const about = ({ target }) => {
    const i = lane.letters ? lane.letters.indexOf(target) - lane.prompt : -1;
    return i >= 0 ? { lane, i } : null;
  };
  lane.code.setAttribute("aria-describedby", "picked");
  lane.code.addEventListener("pointerover", (event) => point(about(event)));
  lane.code.addEventListener("pointerleave", () => point(null));
  lane.code.addEventListener("click", (event) => about(event) && choose(lane, about(event).i));
  lane.code.addEventListener("keydown", (event) => walk(lane, event));
}

// The newest step with a cache: its query, the keys, their weights, in the head that is picked or all of the layer.
function drawStep() {
  const { decoding } = LANES[1], { n_embd, n_head } = LIVE.config, hs = n_embd / n_head, [layer, head] = picks();
  at("inside-title").textContent = `The new query is compared with every key: layer ${layer}, ${head === "mean" ? "all heads" : `head ${head}`}`;
  const row = decoding.rows?.at(-1);
  at("seen").hidden = !row;
  if (!row) return [at("query"), at("keys")].forEach(board);
  const [from, to] = head === "mean" ? [0, n_embd] : [head * hs, (Number(head) + 1) * hs];
  const weights = weightsOf(decoding.seen.at(-1)), own = row.trace.layers[layer].query.subarray(from, to);
  const isNew = (slot) => decoding.rows.some((each) => each.slot === slot);
  const used = decoding.cache[layer].keys.slice(0, row.last + 1).map((key) => key.subarray(from, to));
  const left = board(at("query")), right = board(at("keys")), high = (right.height * 0.66) / own.length, wide = right.width / used.length;
  const cells = ({ fill }, colour, numbers, x, end) => {
    const most = Math.max(...numbers.map(Math.abs));
    numbers.forEach((value, i) => fill(colour, x, i * high, end, (i + 1) * high, 0.06 + 0.94 * ((value / most + 1) / 2) ** 2));
  };
  cells(left, "now", own, 0, left.width);
  const most = Math.max(...weights), floor = right.height, gap = wide < 4 ? 0 : 1;
  used.forEach((key, slot) => {
    const colour = isNew(slot) ? "now" : "kept", [x, end] = [slot * wide, (slot + 1) * wide - gap];
    cells(right, colour, key, x, end);
    right.fill(colour, x, floor - (floor * 0.3 * weights[slot]) / most, end, floor);
  });
  const heads = LIVE.config.n_layer * n_head, { length } = decoding.rows;
  at("seen").textContent = `The newest token that was read is ${nameOf(row.token)} at position ${row.position}. Its query attends to ${weights.length} keys. Written in this step: ${length === 1 ? "one key and one value" : `${length} keys and ${length} values`} of each head, ${number(length * 2 * hs)} numbers; for all ${heads} heads ${number(length * 2 * hs * heads)}.`;
}
