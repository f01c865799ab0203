// Shows the bugs in which every word occurs, of one group or of all. Without it, all are shown.
"use strict";
const form = document.getElementById("find"), count = document.getElementById("count");
const bugs = [...document.querySelectorAll(".bug")].map((bug) => {
  const said = [bug.id, bug.dataset.group, ...[...bug.querySelectorAll("h3, h3 + p")].map((part) => part.textContent)];
  return [bug, said.join(" ").toLowerCase()];
});

function show() {
  const words = form.elements.q.value.toLowerCase().split(/\s+/).filter(Boolean);
  const group = form.elements.group.value;
  let shown = 0;
  for (const [bug, text] of bugs) {
    const inGroup = [bug.dataset.group, "all"].includes(group) || (group === "traps" && bug.dataset.trap);
    bug.hidden = !(inGroup && words.every((word) => text.includes(word)));
    shown += !bug.hidden;
  }
  for (const box of document.querySelectorAll("pre")) {
    if (box.scrollWidth > box.clientWidth) box.tabIndex = 0; // what scrolls takes the keyboard
  }
  for (const room of document.querySelectorAll(".room")) room.hidden = !room.querySelector(".bug:not([hidden])");
  count.textContent = shown === bugs.length ? "" : `${shown || "None"} of ${bugs.length} bugs`;
}

// A link to a room shows it, whatever was asked for.
function arrive() {
  const bug = document.getElementById(location.hash.slice(1));
  if (!bug?.hidden) return;
  form.reset();
  show();
  bug.scrollIntoView({ behavior: "instant" });
}

form.hidden = false;
form.elements.q.value = new URLSearchParams(location.search).get("q") || form.elements.q.value;
form.addEventListener("input", show);
form.addEventListener("submit", (event) => {
  event.preventDefault();
  document.querySelector(".bug:not([hidden]) a")?.focus();
});
addEventListener("hashchange", arrive);
show();
arrive();
