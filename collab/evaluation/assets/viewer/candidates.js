// The candidates of a turn side by side, and the simulated futures below each of them.

const UNFOLDED = new Set(); // ids of the candidates whose futures are shown

function candidateRow(tree, candidates, scale, turn) {
  const estimates = candidates.map((node) => estimateOf(tree, node));
  const largest = new Map();
  for (const { components } of estimates) {
    for (const [name, value] of components) largest.set(name, Math.max(largest.get(name) ?? 0, Math.abs(value)));
  }
  const group = el("section", { class: "turn-candidates", "aria-label": `Candidates of turn ${turn}` },
    el("h3", {}, `Turn ${turn}`, el("span", { text: counted(candidates.length, "candidate") })));
  const cards = candidates.map((node, place) => candidateCard(node, estimates[place], place, scale, largest));
  group.append(el("div", { class: "candidates", "data-row": true }, ...cards), el("div", { class: "unfolded" }));
  candidates.forEach((node, place) => { if (UNFOLDED.has(node.id)) unfold(group, node, estimates[place], place, true); });
  group.addEventListener("fold", ({ detail: { card, open } }) => {
    const place = cards.indexOf(card);
    unfold(group, candidates[place], estimates[place], place, open);
  });
  return group;
}

const LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ";
const letter = (place) => LETTERS[place] ?? String(place + 1);

function candidateCard(node, estimate, place, scale, largest) {
  const { source, rank } = mapping(node.annotations.candidate);
  const role = roleOf(node);
  const mark = role === "chosen" ? el("span", { class: "mark chosen", text: "✓ chosen" })
    : role === "rejected" ? el("span", { class: "mark rejected", text: "✗ rejected" })
    : node.annotations.kept === true ? el("span", { class: "mark", text: "kept" }) : null;
  const { mean, error, used, failed, futures } = estimate;
  const figure = el("div", { class: "figure", title: "Multiturn-aware Reward: mean ± standard error over the futures" },
    el("b", { text: fixed(mean) }), error === null ? null : el("span", { text: `± ${fixed(error)}` }),
    el("span", { class: "name", text: "MR" }),
    failed ? el("span", { class: "failed", text: `${failed} of ${used + failed} futures failed` }) : null);
  const toggle = el("button", { type: "button", class: "futures-toggle", "aria-expanded": "false", tabindex: "-1",
    onclick: (event) => foldFutures(event.target.closest(".candidate")) }, counted(futures.length, "future"));
  const card = el("article", {
    class: `candidate ${role ?? "other"}`, tabindex: "0", "data-stop": "candidate",
    "data-mask": "trained", "data-node": node.id, "aria-label": `Candidate ${letter(place)}${role ? `, ${role}` : ""}, MR ${fixed(mean)}`,
  },
  el("header", {}, el("span", { class: "letter", text: letter(place) }), mark,
    source ? el("span", { class: "source", text: spoken(source), title: "Where this candidate comes from" }) : null,
    Number.isInteger(rank) ? el("span", { class: "rank", text: `rank ${rank + 1}`, title: "Rank by MR, 1 is the best" }) : null, maskMark(node)),
  figure, scale ? strip(estimate, scale, role ?? "other") : null,
  textBlock(node.message.content, 42), el("div", { class: "extras" }),
  node.outcome ? el("p", { class: "own-outcome" }, "this reply ended the conversation: ", outcomeMark(node.outcome)) : null,
  componentTable(estimate.components, largest), futures.length ? toggle : null);
  NODE_OF.set(card, node);
  return card;
}

// Fold or unfold the futures of a card: the other way round, or as `open` says.
function foldFutures(card, open = card.querySelector(".futures-toggle")?.getAttribute("aria-expanded") === "false") {
  if (card.querySelector(".futures-toggle")) card.dispatchEvent(new CustomEvent("fold", { bubbles: true, detail: { card, open } }));
}

function unfold(group, node, estimate, place, open) {
  const card = group.querySelector(`[data-node="${node.id}"]`);
  card.querySelector(".futures-toggle").setAttribute("aria-expanded", String(open));
  card.classList.toggle("open", open);
  const shelf = group.querySelector(":scope > .unfolded");
  shelf.querySelector(`[data-of="${node.id}"]`)?.remove();
  if (!open) { UNFOLDED.delete(node.id); return; }
  UNFOLDED.add(node.id);
  const role = roleOf(node);
  const panel = el("section", { class: `futures ${role ?? "other"}`, "data-of": node.id, "data-place": place,
    "aria-label": `Futures of candidate ${letter(place)}` },
  el("h4", {}, "Futures of candidate ", el("span", { class: "letter", text: letter(place) }), role ? ` ${role}` : null),
  el("div", { class: "columns", "data-row": true }, ...estimate.futures.map((future) => futureCard(future))));
  const after = [...shelf.children].find((other) => Number(other.dataset.place) > place);
  shelf.insertBefore(panel, after ?? null);
  fillExtras(panel);
}

function futureCard(future) {
  const reward = numeric(future.reward);
  const name = Number.isInteger(future.index) ? `Future ${future.index + 1}` : "Future";
  const card = el("article", { class: `future ${outcomeKind(future.outcome)}`, tabindex: "0", "data-stop": "future",
    "aria-label": `${name}, ${spoken(future.outcome)}, reward ${fixed(reward)}` },
  el("header", {}, el("span", { class: "who", text: name }), outcomeMark(future.outcome),
    el("b", { class: "reward", text: fixed(reward), title: reward === null ? "No reward: left out of the mean" : "Reward R*" })));
  if (future.error) card.append(el("p", { class: "error", text: future.error, dir: "auto" }));
  if (future.steps === null) card.append(el("p", { class: "notice", text: "The messages of this future are not stored in the tree." }));
  else if (!future.steps.length) card.append(el("p", { class: "notice", text: "Nothing was played: the conversation is scored as it stands." }));
  else card.append(...future.steps.map((node) => messageElement(node, { compact: true })));
  const components = componentTable(new Map(Object.entries(future.components).filter(([, value]) => numeric(value) !== null)));
  if (components) card.append(components);
  return card;
}
