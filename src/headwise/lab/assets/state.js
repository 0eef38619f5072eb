/* What is shown, its history, and its form in the address. Head h of layer l is at l * H + h. */
const lab = {};
const state = { text: "", other: "", choices: "", gates: [], close: "zero", seed: 0, alpha: 0.3 };
const look = { at: 0, paint: "toggle", mode: "tasks", task: null, example: 0, from: null }; /* of the page, not of the question */
const history_ = { past: [], future: [] };
const kept = [];

const size = () => lab.layers * lab.heads;
const allOpen = () => lab.alive.flat().map(() => 1);
const alive = (i) => lab.alive[Math.floor(i / lab.heads)][i % lab.heads];
const living = () => [...Array(size()).keys()].filter(alive);
const nameOf = (i) => `${Math.floor(i / lab.heads)}.${i % lab.heads}`;
const closedHeads = (gates = state.gates) => living().filter((i) => gates[i] < 1);
const rowsOf = (gates) => [...Array(lab.layers).keys()].map((l) => gates.slice(l * lab.heads, (l + 1) * lab.heads));
const choiceList = () => state.choices.split("\n").map((line) => line.trim()).filter(Boolean);
const asked = (gates = state.gates) => ({ text: state.text, other: state.other, choices: choiceList(), gates: rowsOf(gates), close: state.close, seed: state.seed });

/* Two bits a head, four heads a byte. */
function packed(gates) {
  const codes = gates.map((gate) => (gate === 1 ? 0 : gate === 0 ? 1 : 2));
  const bytes = [];
  for (let i = 0; i < codes.length; i += 4) bytes.push(codes.slice(i, i + 4).reduce((sum, code, j) => sum | (code << (2 * j)), 0));
  return btoa(String.fromCharCode(...bytes)).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}

function unpacked(text) {
  try {
    const bytes = Array.from(atob(text.replaceAll("-", "+").replaceAll("_", "/")), (c) => c.charCodeAt(0));
    const codes = bytes.flatMap((byte) => [0, 1, 2, 3].map((j) => (byte >> (2 * j)) & 3)).slice(0, size());
    return codes.length === size() ? codes.map((code, i) => (alive(i) ? [1, 0, 0.5, 1][code] : 1)) : null;
  } catch { return null; }
}

function toAddress() {
  const words = new URLSearchParams({ t: state.text });
  if (state.other) words.set("o", state.other);
  if (state.choices) words.set("c", state.choices);
  if (closedHeads().length) words.set("m", packed(state.gates));
  if (state.close !== "zero") { words.set("r", state.close); words.set("s", state.seed); }
  history.replaceState(null, "", `#${words}`);
}

function fromAddress() {
  const words = new URLSearchParams(location.hash.slice(1));
  const mask = words.get("m") && unpacked(words.get("m"));
  const heads = (words.get("heads") || "").split(",").filter((one) => /^\d+\.\d+$/.test(one)).map((one) => one.split(".").map(Number));
  const gates = mask || allOpen();
  for (const [l, h] of heads) if (l < lab.layers && h < lab.heads && lab.alive[l][h]) gates[l * lab.heads + h] = 0;
  const close = ["zero", "mean", "resample"].includes(words.get("r")) ? words.get("r") : "zero";
  const seed = Math.max(0, Math.min(2 ** 31 - 1, Math.floor(Number(words.get("s")) || 0)));
  return { text: (words.get("t") || "").slice(0, 4000), other: (words.get("o") || "").slice(0, 4000), choices: (words.get("c") || "").slice(0, 4000), gates, close, seed };
}

/* Every change of the question goes through here: typing in one field is one step to undo. */
function change(changes, quiet = false) {
  const before = { ...state, gates: [...state.gates] };
  Object.assign(state, changes);
  if (!quiet) { history_.past.push(before); history_.past.splice(0, history_.past.length - 200); history_.future = []; }
  refresh(changes);
}

function step(from, to) {
  const next = history_[from].pop();
  if (!next) return;
  history_[to].push({ ...state, gates: [...state.gates] });
  Object.assign(state, next);
  refresh(next);
}
const undo = () => step("past", "future");
const redo = () => step("future", "past");

function setGates(heads, value, quiet = false) {
  const gates = [...state.gates];
  for (const i of heads) if (alive(i)) gates[i] = value;
  change({ gates }, quiet);
}

/* The heads most important to a task, ties to the lower layer and head, as the library selects them. */
function topHeads(task, alpha = state.alpha) {
  const scores = lab.scores[task]?.flat();
  if (!scores) return [];
  const order = [...scores.keys()].filter((i) => known(scores[i])).sort((a, b) => scores[b] - scores[a] || a - b);
  return order.slice(0, Math.floor(alpha * size() + 1e-6));
}
