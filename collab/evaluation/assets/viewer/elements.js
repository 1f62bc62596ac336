// Making elements. Text reaches the page through `textContent` alone; the content policy refuses anything else.

const $ = (id) => document.getElementById(id);

// el("button", {class: "x", text: "Go", type: "button", onclick}, child, ...): an element; null children are left out.
function el(tag, options = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(options)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "text") element.textContent = visible(value);
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

function svg(tag, attributes, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

// Control characters are shown as their pictures: a NUL is seen, not swallowed.
function visible(text) {
  return String(text).replace(/\r\n?/g, "\n")
    .replace(/[\u0000-\u0008\u000b-\u001f\u007f]/g, (c) => (c === "\u007f" ? "\u2421" : String.fromCharCode(0x2400 + c.charCodeAt(0))));
}

const MISSING = "–";
const fixed = (value, decimals = 2) => {
  if (value === null || value === undefined) return MISSING;
  const text = value.toFixed(Math.abs(value) >= 100 ? 0 : decimals);
  return (Number(text) === 0 ? text.replace("-", "") : text).replace("-", "\u2212");
};
const counted = (count, one, many = `${one}s`) => `${count.toLocaleString("en")} ${count === 1 ? one : many}`;
const spoken = (name) => String(name ?? "unknown").replaceAll("_", " ");

function outcomeMark(outcome) {
  return el("span", { class: `outcome ${outcomeKind(outcome)}`, text: spoken(outcome) });
}

// Whose doing an outcome is: the conversation's own end, a limit, or a failure.
function outcomeKind(outcome) {
  if (outcome === "ended") return "ended";
  if (outcome === "window_full" || outcome === "truncated") return "limit";
  return "failure";
}

const LONGEST_SHOWN = 20000;

// A message's text. A long one is cut to some lines, and a very long one is not even in the page, until somebody asks.
function textBlock(content, columns) {
  const text = visible(content);
  const block = el("div", { class: "text", dir: "auto" });
  const lines = text.length > LONGEST_SHOWN ? Infinity
    : text.split("\n").reduce((sum, line) => sum + 1 + Math.floor(line.length / columns), 0);
  if (lines <= 18) {
    block.textContent = text === "" ? "(empty)" : text;
    if (text === "") block.classList.add("empty");
    return block;
  }
  const button = el("button", { type: "button", class: "whole quiet" });
  const show = (whole) => {
    block.classList.toggle("clamped", !whole);
    block.textContent = whole ? text : text.slice(0, LONGEST_SHOWN);
    button.textContent = whole ? "Show less" : `Show all ${counted(text.length, "character")}`;
    button.setAttribute("aria-expanded", String(whole));
  };
  button.addEventListener("click", () => show(block.classList.contains("clamped")));
  show(false);
  return el("div", {}, block, button);
}

// Rewards of the futures as dots, their mean and its standard error as a bar, on the scale that all candidates share.
function strip({ mean, error, rewards }, scale, kind) {
  const at = (value) => `${(3 + 94 * (value - scale.low) / (scale.high - scale.low)).toFixed(2)}%`;
  const picture = svg("svg", { class: `strip ${kind}`, width: "100%", height: "26", "aria-hidden": "true" });
  picture.append(svg("line", { class: "axis", x1: "3%", x2: "97%", y1: "13", y2: "13" }));
  if (scale.low < 0 && scale.high > 0) picture.append(svg("line", { class: "zero", x1: at(0), x2: at(0), y1: "4", y2: "22" }));
  for (const reward of rewards) picture.append(svg("circle", { class: "dot", cx: at(reward), cy: "13", r: "3" }));
  if (mean !== null) {
    if (error) picture.append(svg("line", { class: "error", x1: at(mean - error), x2: at(mean + error), y1: "13", y2: "13" }));
    picture.append(svg("line", { class: "mean", x1: at(mean), x2: at(mean), y1: "5", y2: "21" }));
  }
  return picture;
}

function sharedScale(estimates) {
  let low = Infinity, high = -Infinity;
  for (const { mean, error, rewards } of estimates) {
    for (const value of mean === null ? rewards : [...rewards, mean - (error ?? 0), mean + (error ?? 0)]) {
      low = Math.min(low, value);
      high = Math.max(high, value);
    }
  }
  if (low > high) return null;
  return high - low < 1e-9 ? { low: low - 0.5, high: high + 0.5 } : { low, high };
}

// Components by name with their values; bars are to the scale of `largest` (by name), or all to one of at least 1.
function componentTable(components, largest = new Map()) {
  if (!components.size) return null;
  const body = el("tbody"), common = Math.max(1, ...[...components.values()].map(Math.abs));
  for (const [name, value] of components) {
    const bar = el("span", { class: value < 0 ? "bar negative" : "bar" });
    bar.style.width = `${Math.round(100 * Math.min(1, Math.abs(value) / (largest.get(name) || common)))}%`;
    body.append(el("tr", {}, el("th", { scope: "row", text: spoken(name) }), el("td", { class: "meter" }, bar),
      el("td", { class: "value", text: fixed(value) })));
  }
  return el("table", { class: "components" }, body);
}
