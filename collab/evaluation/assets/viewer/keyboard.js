// Everything can be reached with the keyboard alone: Tab goes everywhere, and these keys go faster.

const STOPS = "[data-stop]";
const typing = (element) => element.matches("input, select, textarea");

function rowsOfStops() {
  return [...$("conversation").querySelectorAll("[data-row]")].map((row) => [...row.querySelectorAll(STOPS)]).filter((row) => row.length);
}

function focusStop(stop) {
  stop.focus({ preventScroll: true });
  stop.scrollIntoView({ block: stop.offsetHeight > innerHeight * 0.7 ? "start" : "nearest", inline: "nearest" });
}

function enterConversation() {
  const rows = rowsOfStops();
  if (rows.length) focusStop(rows[0][0]);
}

// Move over messages and rows of candidates: `down` rows on, `across` places within the row.
function move(down, across) {
  const rows = rowsOfStops();
  const here = document.activeElement.closest(STOPS);
  const row = rows.findIndex((stops) => stops.includes(here));
  if (row < 0) { enterConversation(); return; }
  const place = rows[row].indexOf(here);
  if (across) {
    const target = rows[row][place + across];
    if (target) focusStop(target); else if (across < 0 && place === 0) $("list").focus();
    return;
  }
  const next = rows[row + down];
  if (next) focusStop(next[Math.min(place, next.length - 1)]);
}

function flip(name) {
  SWITCHES[name] = !SWITCHES[name];
  $(name).setAttribute("aria-pressed", String(SWITCHES[name]));
  document.body.dataset.mask = SWITCHES.mask ? "on" : "off";
  fillExtras($("conversation"));
}

function foldAll() {
  const cards = [...$("conversation").querySelectorAll(".candidate:has(.futures-toggle)")];
  const open = cards.some((card) => !card.classList.contains("open"));
  for (const card of cards) foldFutures(card, open);
}

function chooseBranch(node, place) {
  BRANCHES.set(node?.id ?? null, place);
  showTree($("conversation").tree, TREES[SELECTED]);
  document.querySelector(`[data-fork="${node?.id ?? "root"}"] [aria-pressed="true"]`).focus();
}

function stepBranch(by) {
  const tabs = [...document.querySelectorAll(".branch")];
  const next = tabs.findIndex((tab) => tab.getAttribute("aria-pressed") === "true") + by;
  tabs[next]?.click();
}

function candidateHere() {
  const here = document.activeElement;
  const of = here.closest(".futures")?.dataset.of;
  return of === undefined ? here.closest(".candidate") : document.querySelector(`[data-node="${of}"]`);
}

// Fold the futures of the candidate in focus; from within the futures the focus goes back to their candidate.
function foldHere() {
  const card = candidateHere();
  if (!card) return;
  foldFutures(card);
  if (!document.activeElement.closest(STOPS)) focusStop(card);
  markText();
}

const KEYS = {
  "j": () => step(1),
  "k": () => step(-1),
  "/": () => $("text").select(),
  "o": () => $("outcomes").firstElementChild?.focus(),
  "c": clearFilters,
  "f": foldHere,
  "F": () => { foldAll(); markText(); },
  "e": () => document.activeElement.closest(STOPS)?.querySelector(".whole")?.click(),
  "t": () => flip("tokens"),
  "m": () => flip("mask"),
  "d": () => flip("details"),
  "l": () => $("theme").click(),
  "[": () => stepBranch(-1),
  "]": () => stepBranch(1),
  "?": () => $("help").showModal(),
  "Escape": () => $("list").focus(),
};

const LIST_KEYS = {
  "ArrowDown": () => step(1),
  "ArrowUp": () => step(-1),
  "PageDown": () => step(Math.max(1, Math.floor($("list").clientHeight / ROW_HEIGHT) - 1)),
  "PageUp": () => step(-Math.max(1, Math.floor($("list").clientHeight / ROW_HEIGHT) - 1)),
  "Home": () => step(-TREES.length),
  "End": () => step(TREES.length),
  "Enter": enterConversation,
  "ArrowRight": enterConversation,
};

const THREAD_KEYS = {
  "ArrowDown": () => move(1, 0),
  "ArrowUp": () => move(-1, 0),
  "ArrowRight": () => move(0, 1),
  "ArrowLeft": () => move(0, -1),
  "Home": enterConversation,
  "End": () => { const rows = rowsOfStops(); if (rows.length) focusStop(rows[rows.length - 1][0]); },
};

function pressed(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || $("help").open) return;
  const here = document.activeElement;
  let action;
  if (typing(here)) {
    if (event.key === "Escape") action = KEYS.Escape;
    if (event.key === "Enter" && here === $("text")) action = () => { $("list").focus(); step(0); };
  } else if (here === $("list")) action = LIST_KEYS[event.key] ?? KEYS[event.key];
  else if (here.closest(STOPS) === here) action = (event.key === "Enter" ? foldHere : THREAD_KEYS[event.key]) ?? KEYS[event.key];
  else action = KEYS[event.key] ?? (here === document.body || here === $("conversation") ? THREAD_KEYS[event.key] : undefined);
  if (!action) return;
  event.preventDefault();
  action();
}
