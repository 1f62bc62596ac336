// The run: an index of all trees, and the blocks that hold them, unpacked when asked for.

const INDEX = JSON.parse(document.getElementById("index").textContent);
const TREES = INDEX.trees;
const ADDRESSES = addressed();
const UNPACKED = new Map();
const MOST_UNPACKED = 6;

// What the page's address says of each tree: its task, its policy where it has one, and from the second such tree on a number.
function addressed() {
  const times = new Map();
  return TREES.map((tree) => {
    const task = encoded(tree.task_id), policy = encoded(tree.policy);
    const number = (times.get(`${task}/${policy}`) ?? 0) + 1;
    times.set(`${task}/${policy}`, number);
    return number > 1 ? `${task}/${policy}/${number}` : policy || !task ? `${task}/${policy}` : task;
  });
}

// The position of the tree that an address names, of the first one of a task where it names the task alone; -1: of none.
function positionOf(address) {
  if (!address) return -1;
  try {
    const exact = ADDRESSES.indexOf(address.split("/").map((part) => encoded(decodeURIComponent(part))).join("/"));
    const task = decodeURIComponent(address);
    return exact >= 0 ? exact : TREES.findIndex((tree) => tree.task_id === task);
  } catch {
    return -1; // not an address of ours
  }
}

function encoded(text) {
  return encodeURIComponent(text.replace(/\p{Surrogate}/gu, "\ufffd")); // a lone surrogate cannot be encoded
}

async function unpack(number) {
  const packed = atob(document.getElementById(`block-${number}`).textContent);
  const bytes = new Uint8Array(packed.length);
  for (let i = 0; i < bytes.length; i++) bytes[i] = packed.charCodeAt(i);
  return JSON.parse(await gunzip(bytes));
}

function block(number) {
  if (!UNPACKED.has(number)) {
    if (UNPACKED.size >= MOST_UNPACKED) UNPACKED.delete(UNPACKED.keys().next().value);
    UNPACKED.set(number, unpack(number));
  }
  return UNPACKED.get(number);
}

async function loadTree(position) {
  const { block: number, place } = TREES[position];
  return new Tree((await block(number))[place]);
}

// Positions of the trees that contain a text, block by block; stops when `stale()` says that nobody waits for them any more.
async function* search(query, stale) {
  const needle = query.toLowerCase();
  for (let number = 0; number < INDEX.blocks; number++) {
    const records = UNPACKED.has(number) ? await UNPACKED.get(number) : await unpack(number);
    if (stale()) return;
    const found = [];
    for (let position = firstOf(number); position < TREES.length && TREES[position].block === number; position++) {
      if (contains(records[TREES[position].place], needle)) found.push(position);
    }
    yield { found, share: (number + 1) / INDEX.blocks };
  }
}

function contains(record, needle) {
  const { goal, reference } = record.metadata ?? {};
  return [record.task_id, goal, reference].some((text) => typeof text === "string" && text.toLowerCase().includes(needle))
    || record.nodes.some((node) => node.message.content.toLowerCase().includes(needle));
}

// The first tree of a block: blocks hold the trees in the order of the index.
function firstOf(number) {
  let low = 0, high = TREES.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (TREES[middle].block < number) low = middle + 1; else high = middle;
  }
  return low;
}

const mapping = (value) => (value !== null && typeof value === "object" && !Array.isArray(value) ? value : {});
const numeric = (value) => (typeof value === "number" ? value : null);

// A conversation tree, as simulators/conversation.py writes it.
class Tree {
  constructor(record) {
    this.taskId = record.task_id;
    this.metadata = mapping(record.metadata);
    this.nodes = record.nodes;
    this.below = new Map();
    for (const node of this.nodes) {
      node.annotations = mapping(node.annotations);
      node.parent ??= null;
      if (!this.below.has(node.parent)) this.below.set(node.parent, []);
      this.below.get(node.parent).push(node);
    }
  }

  children(node) { return this.below.get(node ? node.id : null) ?? []; }

  // The nodes below `above` down to the node with this id, `above` left out; null where it does not stand below it.
  between(above, id) {
    const path = [];
    for (let node = this.nodes[id]; node; node = this.nodes[node.parent]) {
      if (node.id === above.id) return path.reverse();
      path.push(node);
    }
    return null;
  }

  // What follows a node in the conversation that was kept, as tree_summary.py has it: {candidates} to choose from,
  // {fork} where several conversations go on, and the `next` node (undefined at the end).
  following(node, branch) {
    const children = this.children(node);
    const kept = children.find((child) => child.annotations.kept === true);
    if (node && isCandidate(node)) return { next: kept };
    const candidates = children.filter(isCandidate);
    if (candidates.length) return { candidates, next: kept ?? candidates.find((child) => roleOf(child) === "chosen") };
    if (kept || children.length < 2) return { next: kept ?? children[0] };
    return { fork: children, next: children[branch] ?? children[0] };
  }

  // The futures of a candidate: those its MR was estimated from, or, without an estimate, the conversations stored below it.
  futures(candidate) {
    const stored = mapping(candidate.annotations.mr).futures;
    if (Array.isArray(stored)) {
      return stored.map(mapping).map((future, place) => ({
        ...future,
        index: future.index ?? place,
        components: mapping(future.components),
        steps: Number.isInteger(future.leaf) ? this.between(candidate, future.leaf) : null,
      }));
    }
    const ends = [];
    const open = this.children(candidate).filter((child) => !isCandidate(child));
    while (open.length) {
      const node = open.pop();
      const below = this.children(node).filter((child) => !isCandidate(child));
      if (below.length) open.push(...below); else ends.push(node);
    }
    return ends.reverse().map((node, place) => ({
      index: place, outcome: node.outcome, components: {}, steps: this.between(candidate, node.id),
    }));
  }
}

const isCandidate = ({ annotations }) => [annotations.candidate, annotations.mr].some((value) => Object.keys(mapping(value)).length);
const roleOf = (node) => ["chosen", "rejected"].find((role) => role === mapping(node.annotations.candidate).role);

// An estimated MR as {mean, error, rewards, used, failed, components}; every figure may be null.
function estimateOf(tree, candidate) {
  const mr = mapping(candidate.annotations.mr);
  const futures = tree.futures(candidate);
  const rewards = futures.map((future) => numeric(future.reward)).filter((reward) => reward !== null);
  return {
    mean: numeric(mr.mean), error: numeric(mr.std_error), rewards, futures,
    used: numeric(mr.used) ?? rewards.length, failed: numeric(mr.failed) ?? 0, components: meanComponents(mr, futures),
  };
}

function meanComponents(mr, futures) {
  const given = Object.entries(mapping(mr.components)).filter(([, value]) => numeric(value) !== null);
  if (given.length) return new Map(given);
  const values = new Map();
  for (const future of futures) {
    for (const [name, value] of Object.entries(future.components)) {
      if (numeric(value) !== null) values.set(name, [...(values.get(name) ?? []), value]);
    }
  }
  return new Map([...values].map(([name, all]) => [name, all.reduce((sum, value) => sum + value, 0) / all.length]));
}
