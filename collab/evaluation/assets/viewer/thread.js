// The conversation in the middle: what was asked for, the messages that were kept, and the candidates at every turn.

const NODE_OF = new WeakMap(); // the message element of a node, so that a switch can add tokens and details to it
const SWITCHES = { tokens: false, mask: false, details: false };
const BRANCHES = new Map(); // node id (or null, the root) -> which of its conversations is shown

function showTree(tree, summary) {
  const main = $("conversation");
  main.replaceChildren(treeHeader(tree, summary), thread(tree));
  fillExtras(main);
}

function treeHeader(tree, summary) {
  const { goal, reference, environment, policy, task_id, conversations, stopped, ...rest } = tree.metadata;
  const about = [environment, policy, counted(summary.metrics.turns ?? 0, "turn")];
  if (summary.candidates) about.push(counted(summary.candidates, "candidate"), counted(summary.futures, "future"));
  const header = el("header", { class: "task" },
    el("h2", { text: tree.taskId, dir: "auto" }),
    el("p", { class: "about" }, ...about.filter(Boolean).map((text) => el("span", { text })),
      summary.failed ? el("span", { class: "failed", text: `${summary.failed} failed` }) : null));
  const facts = Object.entries(summary.metrics).filter(([name]) => name !== "turns");
  if (facts.length) {
    header.append(el("dl", { class: "facts" }, ...facts.map(([name, value]) =>
      el("div", {}, el("dt", { text: spoken(name) }), el("dd", { text: fixed(value) })))));
  }
  const brief = el("div", { class: "brief" });
  if (goal) brief.append(el("section", {}, el("h3", { text: "Goal of the user" }), textBlock(String(goal), 70)));
  if (reference) brief.append(el("section", {}, el("h3", { text: "Reference" }), textBlock(String(reference), 70)));
  if (brief.children.length) header.append(brief);
  if (Object.keys(rest).length) {
    header.append(el("details", {}, el("summary", { text: "Metadata of the task" }),
      el("pre", { text: JSON.stringify(rest, null, 2).slice(0, LONGEST_SHOWN), dir: "auto" })));
  }
  return header;
}

function thread(tree) {
  const list = el("div", { class: "thread" });
  const estimates = tree.nodes.filter(isCandidate).map((node) => estimateOf(tree, node));
  const scale = sharedScale(estimates);
  let turn = 0;
  for (let node = null; ;) {
    const { candidates, fork, next } = tree.following(node, BRANCHES.get(node?.id ?? null));
    if (candidates) list.append(candidateRow(tree, candidates, scale, turn));
    if (fork) list.append(forkRow(tree, node, fork, next));
    if (!next) break;
    if (next.message.role === "user") turn++;
    if (!candidates) list.append(el("div", { class: "row", "data-row": true }, messageElement(next, { turn })));
    const score = scoreCard(next);
    if (score) list.append(el("div", { class: "row", "data-row": true }, score));
    node = next;
  }
  if (tree.metadata.stopped) list.append(el("p", { class: "row error", text: `The conversation stopped: ${tree.metadata.stopped}`, dir: "auto" }));
  if (!list.children.length) list.append(el("p", { class: "notice", text: "This tree holds no messages." }));
  return list;
}

// Several conversations go on from here: the runs of an evaluated task, as a rule.
function forkRow(tree, node, fork, shown) {
  const tabs = fork.map((child, place) => {
    let last = child;
    for (let next; (next = tree.following(last, 0).next);) last = next;
    const total = numeric(mapping(last.annotations.score).total);
    return el("button", { type: "button", class: "branch", "aria-pressed": String(child === shown),
      onclick: () => chooseBranch(node, place) },
    `Run ${place + 1}`, last.outcome ? outcomeMark(last.outcome) : null, total === null ? null : el("b", { text: fixed(total) }));
  });
  return el("div", { class: "branches", role: "group", "aria-label": "Runs of this task", "data-fork": node?.id ?? "root" }, ...tabs);
}

const ROLE_NAMES = { user: "User", assistant: "Policy", system: "System" };

function messageElement(node, { turn = 0, compact = false } = {}) {
  const { role, content } = node.message;
  const element = el("article", {
    class: `message ${role}${compact ? " compact" : ""}`, tabindex: compact ? null : "0", "data-stop": compact ? null : "message",
    "data-mask": node.author === "policy" ? "trained" : "masked",
    "aria-label": `${ROLE_NAMES[role] ?? role}${turn ? `, turn ${turn}` : ""}`,
  },
  el("header", {}, el("span", { class: "who", text: ROLE_NAMES[role] ?? role }),
    turn && role === "user" ? el("span", { class: "turn", text: `turn ${turn}` }) : null, ...flagMarks(node), assessedMark(node), maskMark(node)),
  textBlock(content, compact ? 46 : 84), el("div", { class: "extras" }));
  NODE_OF.set(element, node);
  return element;
}

const flagMarks = (node) => (Array.isArray(node.annotations.flags) ? node.annotations.flags : [])
  .map((flag) => el("span", { class: "flag", text: spoken(flag), title: "Noted about this message" }));

// What an environment made of a reply: lost in conversation classifies its strategy and scores an answer attempt.
function assessedMark(node) {
  const { strategy, score } = mapping(node.annotations.assessed);
  const parts = [strategy && spoken(strategy), numeric(score) !== null && `score ${fixed(score)}`].filter(Boolean);
  return parts.length ? el("span", { class: "assessed", text: parts.join(", ") }) : null;
}

function maskMark(node) {
  const size = node.token_ids?.length;
  const text = node.author === "policy" ? `trainable${size ? ` · ${counted(size, "token")}` : ""}` : "masked";
  return el("span", { class: "mask-mark", text });
}

// What an evaluated conversation earned, at its end.
function scoreCard(node) {
  const score = mapping(node.annotations.score);
  if (!Object.keys(score).length) return null;
  const failures = Object.entries(mapping(score.errors));
  const card = el("article", { class: "score", tabindex: "0", "data-stop": "score", "aria-label": "Score of the conversation" },
    el("header", {}, el("span", { class: "who", text: "Score" }), node.outcome ? outcomeMark(node.outcome) : null),
    el("div", { class: "figure" }, el("b", { text: fixed(numeric(score.total)) }), el("span", { text: "R*" })),
    componentTable(new Map(Object.entries(mapping(score.components)).filter(([, value]) => numeric(value) !== null))));
  for (const [name, error] of failures) card.append(el("p", { class: "error", text: `${spoken(name)}: ${error}`, dir: "auto" }));
  return card;
}

// Tokens and details of every message below `root`, as the switches have it.
function fillExtras(root) {
  for (const element of root.querySelectorAll(".message, .candidate")) {
    const node = NODE_OF.get(element);
    const extras = element.querySelector(":scope > .extras");
    extras.replaceChildren(...[SWITCHES.details ? detailLine(node) : null, SWITCHES.tokens ? tokenLine(node) : null].filter(Boolean));
  }
}

const SHOWN_ANNOTATIONS = new Set(["candidate", "mr", "score", "flags", "kept"]); // they have a place of their own

function detailLine(node) {
  const { prompt_tokens = 0, completion_tokens = 0, cached_tokens = 0 } = node.usage ?? {};
  const facts = [
    ["node", node.id], ["model", node.model], ["weights", node.weights_version], ["finish", node.finish_reason], ["seed", node.seed],
    ["prompt tokens", node.usage && `${prompt_tokens}${cached_tokens ? ` (${cached_tokens} cached)` : ""}`],
    ["new tokens", node.usage && completion_tokens], ["latency", node.latency_s === undefined ? null : `${fixed(node.latency_s)} s`],
    ...Object.entries(node.annotations).filter(([name]) => !SHOWN_ANNOTATIONS.has(name))
      .map(([name, value]) => [spoken(name), JSON.stringify(value).slice(0, 500)]),
  ];
  return el("dl", { class: "detail" }, ...facts.filter(([, value]) => value !== undefined && value !== null)
    .map(([name, value]) => el("div", {}, el("dt", { text: name }), el("dd", { text: value }))));
}

const MOST_TOKENS = 1500;

// The policy's own tokens, shaded by how surprising each was; a node without recorded ids says so.
function tokenLine(node) {
  if (node.author !== "policy") return null;
  const ids = node.token_ids ?? [];
  if (!ids.length) return el("p", { class: "token-note", text: "No token ids were recorded for this message." });
  const line = el("div", { class: "tokens", role: "img", "aria-label": counted(ids.length, "token") });
  ids.slice(0, MOST_TOKENS).forEach((id, place) => {
    const logprob = numeric(node.logprobs?.[place]);
    const text = INDEX.token_text[id];
    const token = el("span", { class: "token", text: text === undefined ? id : text.replaceAll("\n", "↵").replaceAll(" ", "·") || "∅",
      title: `id ${id}${logprob === null ? "" : `, log-probability ${fixed(logprob, 3)}`}` });
    if (logprob !== null) token.style.setProperty("--surprise", `${Math.min(70, -14 * logprob).toFixed(0)}%`);
    line.append(token);
  });
  const known = (node.logprobs ?? []).filter((value) => numeric(value) !== null);
  const mean = known.length ? `, mean log-probability ${fixed(known.reduce((sum, value) => sum + value, 0) / known.length)}` : "";
  const rest = ids.length > MOST_TOKENS ? `, the first ${MOST_TOKENS.toLocaleString("en")} shown` : "";
  return el("div", {}, el("p", { class: "token-note", text: `${counted(ids.length, "token")}${mean}${rest}` }), line);
}
