// The list on the left: filters, order, and as many rows as are in sight.

const ROW_HEIGHT = 76;
const FILTER = { text: "", outcomes: new Set(), policy: "", metric: "", low: null, high: null, order: "run" };
let FOUND = null; // positions that the text search has found so far, null without a text
let SHOWN = TREES.map((_, position) => position);
let SELECTED = -1; // position in TREES
let searches = 0;

const METRICS = [...new Set(TREES.flatMap((tree) => Object.keys(tree.metrics)))];
const POLICIES = [...new Set(TREES.map((tree) => tree.policy).filter(Boolean))];

function buildFilters() {
  const sum = (name) => TREES.reduce((total, tree) => total + tree[name], 0);
  const totals = [counted(TREES.length, "conversation")];
  if (sum("candidates")) totals.push(counted(sum("candidates"), "candidate"), counted(sum("futures"), "future"));
  if (sum("failed")) totals.push(`${sum("failed").toLocaleString("en")} failed`);
  $("totals").textContent = totals.join(" · ");
  const outcomes = new Map();
  for (const tree of TREES) for (const name of Object.keys(tree.outcomes)) outcomes.set(name, (outcomes.get(name) ?? 0) + 1);
  for (const [name, count] of [...outcomes].sort((a, b) => b[1] - a[1])) {
    $("outcomes").append(el("button", { type: "button", class: `chip ${outcomeKind(name)}`, "aria-pressed": "false", "data-outcome": name,
      onclick: (event) => toggleOutcome(event.currentTarget, name) }, spoken(name), el("span", { text: count.toLocaleString("en") })));
  }
  for (const name of METRICS) $("metric").append(el("option", { value: name, text: spoken(name) }));
  FILTER.metric = METRICS.find((name) => ["MR", "score", "best attempt"].includes(name)) ?? METRICS[0] ?? "";
  $("metric").value = FILTER.metric;
  if (POLICIES.length > 1) {
    $("policy-line").hidden = false;
    $("policy").append(el("option", { value: "", text: "every policy" }), ...POLICIES.map((name) => el("option", { value: name, text: name })));
  }
  const changed = (id, set) => $(id).addEventListener("input", (event) => { set(event.target.value); applyFilters(); });
  changed("policy", (value) => { FILTER.policy = value; });
  changed("metric", (value) => { FILTER.metric = value; });
  changed("sort", (value) => { FILTER.order = value; });
  changed("low", (value) => { FILTER.low = value === "" ? null : Number(value); });
  changed("high", (value) => { FILTER.high = value === "" ? null : Number(value); });
  let waiting;
  $("text").addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(searchTexts, 150); });
  $("clear").addEventListener("click", clearFilters);
  $("list").addEventListener("scroll", drawList, { passive: true });
  new ResizeObserver(drawList).observe($("list"));
}

function toggleOutcome(chip, name) {
  const on = !FILTER.outcomes.has(name);
  FILTER.outcomes[on ? "add" : "delete"](name);
  chip.setAttribute("aria-pressed", String(on));
  applyFilters();
}

function clearFilters() {
  Object.assign(FILTER, { outcomes: new Set(), policy: "", low: null, high: null, order: "run" });
  for (const chip of $("outcomes").children) chip.setAttribute("aria-pressed", "false");
  for (const id of ["text", "low", "high", "policy"]) $(id).value = "";
  $("sort").value = "run";
  searchTexts();
}

// Search all texts, block by block; the list grows as they are found, and a new search stops the old one.
async function searchTexts() {
  const mine = ++searches;
  FILTER.text = $("text").value.trim();
  FOUND = FILTER.text ? new Set() : null;
  $("searching").hidden = !FILTER.text;
  $("progress").value = 0;
  applyFilters();
  markText();
  if (!FILTER.text) return;
  let drawn = performance.now();
  for await (const { found, share } of search(FILTER.text, () => mine !== searches)) {
    for (const position of found) FOUND.add(position);
    $("progress").value = share;
    if (performance.now() - drawn > 100) { applyFilters(); drawn = performance.now(); }
  }
  if (mine !== searches) return;
  $("searching").hidden = true;
  applyFilters();
}

function passes(tree, position) {
  if (FOUND && !FOUND.has(position)) return false;
  if (FILTER.policy && tree.policy !== FILTER.policy) return false;
  if (FILTER.outcomes.size && !Object.keys(tree.outcomes).some((name) => FILTER.outcomes.has(name))) return false;
  if (FILTER.low === null && FILTER.high === null) return true;
  const value = tree.metrics[FILTER.metric];
  return value !== undefined && value >= (FILTER.low ?? -Infinity) && value <= (FILTER.high ?? Infinity);
}

function applyFilters() {
  SHOWN = TREES.map((_, position) => position).filter((position) => passes(TREES[position], position));
  const value = (position) => TREES[position].metrics[FILTER.metric];
  if (FILTER.order === "name") SHOWN.sort((a, b) => TREES[a].task_id.localeCompare(TREES[b].task_id, undefined, { numeric: true }));
  else if (FILTER.order !== "run") {
    const sign = FILTER.order === "down" ? -1 : 1;
    SHOWN.sort((a, b) => (value(a) === undefined) - (value(b) === undefined) || sign * (value(a) - value(b)) || a - b);
  }
  $("count").textContent = SHOWN.length === TREES.length ? "All shown" : `${SHOWN.length.toLocaleString("en")} of ${TREES.length.toLocaleString("en")} shown`;
  $("clear").hidden = SHOWN.length === TREES.length && FILTER.order === "run" && !FILTER.text;
  drawList();
}

function drawList() {
  const list = $("list"), rows = $("rows");
  rows.style.height = `${SHOWN.length * ROW_HEIGHT}px`;
  const first = Math.max(0, Math.floor(list.scrollTop / ROW_HEIGHT) - 4);
  const last = Math.min(SHOWN.length, Math.ceil((list.scrollTop + list.clientHeight) / ROW_HEIGHT) + 4);
  rows.replaceChildren(...SHOWN.slice(first, last).map((position, offset) => listRow(position, first + offset)));
  if (!SHOWN.length) rows.append(el("p", { class: "notice", text: FOUND && !$("searching").hidden ? "Searching…" : "No conversation passes these filters." }));
  const active = SHOWN.indexOf(SELECTED);
  if (active >= first && active < last) list.setAttribute("aria-activedescendant", `tree-${SELECTED}`);
  else list.removeAttribute("aria-activedescendant");
}

function listRow(position, place) {
  const tree = TREES[position];
  const row = el("div", { class: "item", role: "option", id: `tree-${position}`, "aria-selected": String(position === SELECTED),
    "aria-setsize": SHOWN.length, "aria-posinset": place + 1, onclick: () => { select(position); $("list").focus(); } },
  el("div", { class: "first" }, el("span", { class: "id", text: shortened(tree.task_id), title: tree.task_id, dir: "auto" }),
    el("span", { class: "value", text: FILTER.metric ? fixed(tree.metrics[FILTER.metric], FILTER.metric === "turns" ? 0 : 2) : "" })),
  el("div", { class: "opening", text: tree.opening || "(no user message)", dir: "auto" }),
  el("div", { class: "last" }, el("span", { text: counted(tree.metrics.turns ?? 0, "turn") }),
    ...Object.keys(tree.outcomes).slice(0, 4).map((name) => el("i", { class: `dot ${outcomeKind(name)}`, title: spoken(name) })),
    POLICIES.length > 1 ? el("span", { text: tree.policy }) : null));
  row.style.top = `${place * ROW_HEIGHT}px`;
  return row;
}

// Long ids of one run begin alike and differ at the end, so what is cut is the middle.
const shortened = (id) => (id.length > 34 ? `${id.slice(0, 12)}…${id.slice(-20)}` : id);

async function select(position) {
  if (position === SELECTED || position === undefined) return;
  SELECTED = position;
  BRANCHES.clear();
  UNFOLDED.clear();
  keepInSight();
  let tree;
  try { tree = await loadTree(position); } catch (error) { return showFailure(TREES[position].task_id, error); }
  if (position !== SELECTED) return; // somebody went on meanwhile
  unfoldMatches(tree);
  showTree(tree, TREES[position]);
  $("conversation").tree = tree;
  document.querySelector("main").scrollTop = 0;
  location.replace(`#${ADDRESSES[position]}`);
  markText();
}

function showFailure(name, error) {
  $("conversation").replaceChildren(el("p", { class: "notice",
    text: `${name} cannot be read from this page (${error.message}); the file may be cut off, make it again with collab view.` }));
}

function keepInSight() {
  const place = SHOWN.indexOf(SELECTED), list = $("list");
  if (place >= 0) {
    const top = place * ROW_HEIGHT;
    if (top < list.scrollTop) list.scrollTop = top;
    else if (top + ROW_HEIGHT > list.scrollTop + list.clientHeight) list.scrollTop = top + ROW_HEIGHT - list.clientHeight;
  }
  drawList();
}

function step(by) {
  const place = SHOWN.indexOf(SELECTED);
  if (SHOWN.length) select(SHOWN[Math.max(0, Math.min(SHOWN.length - 1, place < 0 ? 0 : place + by))]);
}

// A search that a candidate's futures answer unfolds them: what was found must be in sight.
function unfoldMatches(tree) {
  const needle = FILTER.text.toLowerCase();
  if (!needle) return;
  for (const node of tree.nodes.filter(isCandidate)) {
    const steps = tree.futures(node).flatMap((future) => future.steps ?? []);
    if (steps.some((step) => step.message.content.toLowerCase().includes(needle))) UNFOLDED.add(node.id);
  }
}

// Mark the searched text where it stands, without touching the text.
function markText() {
  if (!("highlights" in CSS)) return;
  CSS.highlights.delete("found");
  const needle = FILTER.text.toLowerCase();
  if (!needle) return;
  const ranges = [];
  const walker = document.createTreeWalker($("conversation"), NodeFilter.SHOW_TEXT);
  for (let text; (text = walker.nextNode()) && ranges.length < 2000;) {
    const content = text.data.toLowerCase();
    if (content.length !== text.data.length) continue; // letters that grow in lower case would shift the marks
    for (let at = content.indexOf(needle); at >= 0; at = content.indexOf(needle, at + needle.length)) {
      const range = new Range();
      range.setStart(text, at);
      range.setEnd(text, at + needle.length);
      ranges.push(range);
    }
  }
  CSS.highlights.set("found", new Highlight(...ranges));
}
