// The measured ladder: speed over rung 1 on a log scale, and the roofline. Opening a rung shows the
// time of one of its tokens: arithmetic and memory are computed from the machine's limits, and
// overhead is the rest of the measured time.
const TIME_PARTS = {
  arithmetic: "computed: its operations, at a peak of",
  memory: "computed: the time for reading its bytes beyond that, at",
  overhead: "the rest of the measured time: calls, allocation, and falling short of the peak",
};

// Billions per second, with the range.
function rateText({ median, low, high }, unit) {
  const billions = (value) => (value / 1e9).toLocaleString("en", { maximumSignificantDigits: 3 });
  return ` ${billions(median)} billion ${unit} a second [${billions(low)} – ${billions(high)}]`;
}

function timeOf(row) {
  return Object.values(row.split).reduce((sum, part) => sum + part, 0);
}

function shareOf(row, part) {
  return `${Math.round((100 * row.split[part]) / timeOf(row))} %`;
}

// Percent from the left on a log scale over all ladders.
function ladderScale(ladders) {
  const speeds = ladders.flatMap(({ roofline, rungs }) =>
    [roofline, ...rungs.map((row) => row.speedup)].filter(Boolean).flatMap(({ low, high }) => [low, high]));
  const [from, to] = [Math.min(1, ...speeds), Math.max(10, ...speeds)].map(Math.log10);
  const percent = (speed) => (100 * (Math.log10(speed) - from)) / (to - from);
  const decades = [1, 10, 100, 1000, 10000].filter((speed) => percent(speed) <= 100);
  return { percent, decades };
}

// A box between two speeds on a track.
function spanned(className, { low, high }, percent) {
  const box = make("span", { className });
  box.style.left = `${percent(low)}%`;
  box.style.width = `${percent(high) - percent(low)}%`;
  return box;
}

// A mark at a speed. A label is centred on it, or aligned to its start or end near the edges.
function placed(className, speed, percent, words = "") {
  const mark = make("span", { className }, words);
  const left = percent(speed);
  const back = left < 8 ? 0 : left > 88 ? 100 : 50;
  mark.style.left = `${left}%`;
  if (words) mark.style.transform = `translateX(-${back}%)`;
  return mark;
}

// Where the rung stands, before the lines of the decades and of the roofline.
function rungTrack(row, { roofline }, { percent, decades }) {
  const lines = decades.map((speed) => placed("decade", speed, percent));
  const limit = [spanned("band", roofline, percent), placed("roofline", roofline.median, percent)];
  const { speedup } = row;
  const rough = row.label.endsWith("8-bit weights") ? " rough" : ""; // not quite the same model
  const look = `dot ${row.rung === "1" ? "without" : "with"}${rough}`;
  const reason = make("span", { className: "reason", title: row.unavailable }, row.unavailable);
  const marks = speedup ? [spanned("whisker", speedup, percent), placed(look, speedup.median, percent)] : [reason];
  return make("span", { className: "track" }, ...lines, ...limit, ...marks);
}

// The time of a token as a bar, as long as its share of `longest`.
function timeBar(row, longest, words) {
  const bar = make("div", { className: "time" });
  bar.style.width = `${(100 * timeOf(row)) / longest}%`;
  for (const part in TIME_PARTS) {
    const box = make("span", { className: part });
    box.style.flexGrow = row.split[part] / timeOf(row);
    bar.append(box);
  }
  return make("div", { className: "timed" }, make("span", {}, `${words}: ${duration(timeOf(row))} a token`), bar);
}

// The panel of an open rung: what it does, its time next to the previous rung's, and its parts.
function openedRung(row, before, { peak, read }) {
  const longest = Math.max(...[row, before].filter(Boolean).map(timeOf));
  const bars = before ? [timeBar(before, longest, `before, rung ${before.rung}`)] : [];
  const limits = { arithmetic: rateText(peak, "operations"), memory: rateText(read, "bytes"), overhead: "" };
  const parts = Object.entries(TIME_PARTS).map(([part, words]) => {
    const number = make("b", {}, `${part} ${duration(row.split[part])}, ${shareOf(row, part)}`);
    return make("li", { className: part }, number, ` ${words}${limits[part]}`);
  });
  if (row.split.overhead === 0) {
    parts.at(-1).append(
      ". None is left: at these medians the limits alone account for the token's whole time, so the memory part ends with it",
    );
  }
  bars.push(timeBar(row, longest, `rung ${row.rung}`));
  return [make("p", {}, row.does), ...bars, make("ul", { className: "parts" }, ...parts)];
}

FIGURES.ladder = ({ ladders }, stage) => {
  const scale = ladderScale(ladders);
  const list = make("ol", { className: "rungs" });
  const told = make("p", { className: "told", ariaLive: "polite" });
  const note = make("p", { className: "meta" });
  let [ladder] = ladders;
  let open = null; // the number of the open rung, which stays open in another ladder

  function tell() {
    const row = ladder.rungs.find((one) => one.rung === open && one.speedup);
    if (!row) {
      told.textContent = "Open a rung to see where its time per token goes.";
      return;
    }
    const { median, low, high, n } = row.speedup;
    const parts = Object.keys(TIME_PARTS).map((part) => `${part} ${shareOf(row, part)}`).join(", ");
    told.textContent = `Rung ${row.rung}, ${row.label}, ${ladder.name}: `
      + `${times(median)} (${times(low)} to ${times(high)}, n = ${n}) the speed of rung 1; `
      + `its tokens ${row.equal ? "are equal" : "differ"}. ${duration(timeOf(row))} a token: ${parts}.`;
  }

  function drawRung(row, i) {
    const name = make("span", { className: "name" }, `${row.rung} ${row.label}`);
    const value = make("span", { className: "value" }, row.speedup ? times(row.speedup.median) : "–");
    const button = make("button", { type: "button", disabled: !row.speedup }, name, rungTrack(row, ladder, scale), value);
    const before = ladder.rungs.slice(0, i).findLast((one) => one.split && one.rung !== "–");
    const panel = make("div", { className: "opened" }, ...(row.split ? openedRung(row, before, ladder) : []));
    button.addEventListener("click", () => {
      open = open === row.rung ? null : row.rung;
      show();
    });
    return make("li", {}, button, panel);
  }

  // Opens the chosen rung and closes the others.
  function show() {
    ladder.rungs.forEach((row, i) => {
      const [button, panel] = list.children[i + 1].children;
      button.setAttribute("aria-expanded", String(row.rung === open));
      panel.hidden = row.rung !== open || !row.split;
    });
    tell();
  }

  function draw() {
    const { percent, decades } = scale;
    const { median } = ladder.roofline;
    const ticks = decades.map((speed) => placed("tick", speed, percent, `${grouped(speed)}×`));
    const axes = [[placed("tick", median, percent, `roofline ${times(median)}`)], ticks].map((marks) =>
      make("li", { className: "axis" }, make("span", { className: "track" }, ...marks)));
    list.replaceChildren(axes[0], ...ladder.rungs.map(drawRung), axes[1]);
    const whose = ladder.published ? `Published, not from this run (${ladder.published})` : "Measured in this run";
    note.textContent = `${whose}: speed over rung 1 on a log scale, medians of ${ladder.turns} with lowest and highest, `
      + `${ladder.tokens} tokens. Peak and bandwidth were measured between the turns.`;
    show();
  }

  function choose(i) {
    ladder = ladders[i];
    draw();
  }

  if (ladders.length > 1) {
    const options = ladders.map(({ name, published }, i) => [i, published ? `${name} (published)` : name]);
    stage.append(make("div", { className: "knobs" }, choice("model", options, 0, choose)));
  }
  stage.append(list, told, note);
  draw();
};
