/* The map of heads: what each task needs, what is closed, and what a click does. */
const PAINTS = { toggle: "Toggle", 0: "Off", 0.5: "Half", 1: "On" };
const CLOSES = { zero: "Zero", mean: "Mean", resample: "Resample" };
const place = (name) => document.querySelector(`[data-part="${name}"]`);
const put = (name, ...children) => { const at = place(name); at.replaceChildren(...children.flat(Infinity).filter((child) => child !== null && child !== undefined)); return at; };
const cells = [];
const marked = () => lab.tasks.filter((task) => lab.scores[task.name]);
const position = (name) => lab.tasks.findIndex((task) => task.name === name);

function drawMap() {
  const group = lab.kv_heads ? lab.heads / lab.kv_heads : lab.heads;
  const rows = [...Array(lab.layers).keys()].reverse().map((layer) =>
    el("div", { role: "row", class: "row" },
      el("span", { role: "rowheader" }, el("button", { type: "button", class: "tick", title: `Layer ${layer}`, "aria-label": `Close or open layer ${layer}`, on: { click: () => toggleAll(layerHeads(layer)) } }, `${layer}`)),
      [...Array(lab.heads).keys()].map((head) => makeCell(layer * lab.heads + head, head && group > 1 && head % group === 0))));
  const foot = el("div", { class: "row foot", "aria-hidden": "true" }, el("span"), [...Array(lab.heads).keys()].map((head) => el("span", { class: "tick" }, `${head}`)));
  const grid = put("map", rows, foot, el("div", { class: "tick axes", "aria-hidden": "true" }, "head → · layer ↑"));
  fill(grid, { role: "grid", "aria-label": "Heads: layers by heads, the first layer at the bottom", "aria-multiselectable": "true", style: { "--heads": lab.heads } }, []);
  grid.classList.toggle("dense", lab.heads > 16 || lab.layers > 12);
  grid.classList.toggle("tiny", lab.heads > 32 || lab.layers > 40);
  document.querySelector('[data-do="zoom"]').hidden = !(lab.heads > 32 || lab.layers > 40 || (size() > 200 && innerWidth < 700));
  grid.addEventListener("pointerdown", startPaint);
  grid.addEventListener("keydown", mapKey);
  addEventListener("pointermove", movePaint);
  for (const end of ["pointerup", "pointercancel"]) addEventListener(end, () => { painting = null; });
  cells[living()[0]].tabIndex = 0;
}

function makeCell(i, edge) {
  const cell = el("div", { role: "gridcell", class: edge ? "cell edge" : "cell", tabindex: -1, "data-head": nameOf(i),
    on: { focus: () => lookAt(i), pointerenter: (event) => { if (event.pointerType === "mouse") read(i); } } });
  cells[i] = cell;
  return cell;
}

const layerHeads = (layer) => [...Array(lab.heads).keys()].map((head) => layer * lab.heads + head).filter(alive);

/* A set that is wholly closed opens, any other closes. */
function toggleAll(heads) {
  const value = heads.every((i) => state.gates[i] === 0) ? 1 : look.paint === "0.5" ? 0.5 : 0;
  setGates(heads, value);
}

let painting = null;
const valueAfter = (i) => (look.paint === "toggle" ? (state.gates[i] < 1 ? 1 : 0) : Number(look.paint));
const headAt = (node) => cells.indexOf(node?.closest?.(".cell"));

function startPaint(event) {
  const i = headAt(event.target);
  if (i < 0 || !alive(i) || event.button > 0) return;
  painting = { value: valueAfter(i), drag: event.pointerType === "mouse", x: event.clientX, y: event.clientY };
  if (event.shiftKey && look.from !== null) return setGates(rectangle(look.from, i), painting.value);
  look.from = i;
  lookAt(i);
  setGates([i], painting.value);
}

function movePaint(event) {
  if (!painting?.drag || !(event.buttons & 1)) return;
  const [dx, dy] = [event.clientX - painting.x, event.clientY - painting.y], steps = Math.max(1, Math.ceil(Math.hypot(dx, dy) / 4));
  const crossed = new Set(); /* a fast mouse jumps over heads: all on the way are meant */
  for (let k = 1; k <= steps; k += 1) crossed.add(headAt(document.elementFromPoint(painting.x + (dx * k) / steps, painting.y + (dy * k) / steps)));
  Object.assign(painting, { x: event.clientX, y: event.clientY });
  const heads = [...crossed].filter((i) => i >= 0 && alive(i) && state.gates[i] !== painting.value);
  if (heads.length) setGates(heads, painting.value, true);
}

function rectangle(a, b) {
  const [l0, l1] = [a, b].map((i) => Math.floor(i / lab.heads)).sort((x, y) => x - y);
  const [h0, h1] = [a, b].map((i) => i % lab.heads).sort((x, y) => x - y);
  return [...Array(size()).keys()].filter((i) => { const l = Math.floor(i / lab.heads), h = i % lab.heads; return l >= l0 && l <= l1 && h >= h0 && h <= h1; });
}

function mapKey(event) {
  const i = headAt(event.target), layer = Math.floor(i / lab.heads), head = i % lab.heads;
  if (i < 0 || event.ctrlKey || event.metaKey || event.altKey) return;
  const moves = { ArrowUp: [layer + 1, head], ArrowDown: [layer - 1, head], ArrowLeft: [layer, head - 1], ArrowRight: [layer, head + 1], Home: [layer, 0], End: [layer, lab.heads - 1], PageUp: [lab.layers - 1, head], PageDown: [0, head] };
  const acts = { " ": () => setGates([i], valueAfter(i)), Enter: () => setGates([i], valueAfter(i)), h: () => setGates([i], state.gates[i] === 0.5 ? 1 : 0.5), l: () => toggleAll(layerHeads(layer)) };
  if (moves[event.key]) {
    const to = clamp(moves[event.key][0], 0, lab.layers - 1) * lab.heads + clamp(moves[event.key][1], 0, lab.heads - 1);
    if (event.shiftKey) setGates([i, to], 0);
    cells[to].focus();
  } else if (acts[event.key]) { if (alive(i)) acts[event.key](); } else return;
  event.preventDefault();
  event.stopPropagation();
}

function lookAt(i) {
  for (const cell of cells) if (cell.tabIndex === 0) cell.tabIndex = -1;
  cells[i].tabIndex = 0;
  const layer = Math.floor(look.at / lab.heads) !== Math.floor(i / lab.heads);
  look.at = i;
  cells.forEach((cell, j) => cell.classList.toggle("looked", j === i));
  read(i);
  drawLooking(layer);
}

/* A line below the map, where a tooltip would cover what it is about. */
function read(i) {
  const needs = marked().filter((task) => known(lab.scores[task.name].flat()[i])).map((task) => {
    const scores = lab.scores[task.name].flat();
    return `${task.short} rank ${1 + scores.filter((score) => known(score) && score > scores[i]).length}`;
  });
  const effect = look.effects ? `; effect on ${shortName(look.effects.task)} ${signed(look.effects.values[i])}` : "";
  const roles = Object.entries(lab.roles).filter(([, heads]) => heads.some(([l, h]) => l * lab.heads + h === i)).map(([name]) => name);
  put("read", el("b", {}, `Head ${nameOf(i)}`), ` ${statusOf(i)}${needs.length ? `; ${needs.slice(0, 9).join(", ")}` : ""}${roles.length ? `; ${roles.join(", ")}` : ""}${effect}`);
}

const statusOf = (i) => (!alive(i) ? "is not there" : state.gates[i] === 1 ? "open" : state.gates[i] === 0 ? "closed" : `${Math.round(100 * state.gates[i])} % open`);
const signed = (value) => (known(value) ? `${value >= 0 ? "+" : "−"}${Math.abs(value).toPrecision(2)}` : "–");
const shortName = (name) => lab.tasks.find((task) => task.name === name)?.short || name;

function paintMap() {
  const tasks = marked(), sets = tasks.map((task) => new Set(topHeads(task.name))), most = look.effects && Math.max(...look.effects.values.filter(known).map(Math.abs));
  cells.forEach((cell, i) => {
    cell.classList.toggle("gone", !alive(i));
    cell.classList.toggle("closed", alive(i) && state.gates[i] === 0);
    cell.classList.toggle("half", alive(i) && state.gates[i] > 0 && state.gates[i] < 1);
    const members = tasks.filter((_, t) => sets[t].has(i));
    if (look.mode === "effect" && look.effects) paintEffect(cell, look.effects.values[i], most);
    else paintMembers(cell, members, tasks.length);
    cell.setAttribute("aria-selected", String(state.gates[i] < 1));
    cell.setAttribute("aria-label", `Layer ${Math.floor(i / lab.heads)}, head ${i % lab.heads}, ${statusOf(i)}${members.length ? `, needed by ${members.map((task) => task.short).join(", ")}` : ""}`);
  });
  if (place("as-text").closest("details").open) writeMap();
}

/* The map for those who read it as text. */
function writeMap() {
  const names = (heads) => heads.map(nameOf).join(" ") || "none";
  put("as-text", el("p", {}, `Closed, as layer.head: ${names(closedHeads())}. Half open: ${names(living().filter((i) => state.gates[i] > 0 && state.gates[i] < 1))}.`),
    marked().length ? el("table", {}, el("thead", {}, el("tr", {}, ["task", `its top ${percent(state.alpha)} of heads`].map((name) => el("th", { scope: "col" }, name)))),
      el("tbody", {}, marked().map((task) => el("tr", {}, el("th", { scope: "row" }, task.name), el("td", {}, names(topHeads(task.name))))))) : null);
}

function paintMembers(cell, members, count) {
  cell.style.background = "";
  cell.className = cell.className.replace(/ ?side\d/g, "");
  if (count > 9) { cell.replaceChildren(members.length ? el("i", { class: "many", style: { opacity: 0.35 + (0.65 * members.length) / count } }, `${members.length}`) : ""); return; }
  cell.classList.add(count > 4 ? "side3" : "side2");
  cell.replaceChildren(...members.map((task) => {
    const at = marked().indexOf(task), side = count > 4 ? 3 : 2;
    return el("i", { class: `mark ${taskClass(position(task.name))}`, style: { "grid-area": `${1 + Math.floor(at / side)} / ${1 + (at % side)}` }, "data-letter": task.letter });
  }));
}

function paintEffect(cell, value, most) {
  const t = known(value) && most ? Math.abs(value) / most : 0;
  cell.style.background = t > 0.02 ? shade(0.9 * t) : "";
  cell.replaceChildren(t > 0.08 ? el("b", { class: "sign", style: { color: inkOn(0.9 * t) } }, value > 0 ? "+" : "−") : "");
}

function drawControls() {
  put("paint", segments(Object.entries(PAINTS).sort().map(([key, label]) => ({ key, label })).sort((a, b) => (a.key === "toggle" ? -1 : b.key === "toggle" ? 1 : a.key - b.key)), look.paint, (key) => { look.paint = key; drawControls(); }));
  put("close", segments(Object.entries(CLOSES).map(([key, label]) => ({ key, label })), state.close, (key) => change({ close: key, seed: key === "resample" && state.close === key ? state.seed + 1 : state.seed })));
  drawSets();
}

const CHIPS = 12; /* tasks with a button of their own; the others are in a list */

function drawSets() {
  const chips = marked().slice(0, CHIPS).map((task) => {
    const heads = topHeads(task.name), on = heads.length && heads.every((i) => state.gates[i] === 0);
    return el("button", { type: "button", class: `chip ${taskClass(position(task.name))}`, "aria-pressed": String(Boolean(on)), title: `${heads.length} heads most important to ${task.name}`, on: { click: () => toggleAll(heads) } }, el("i", { class: "dot" }), el("b", {}, task.letter), ` ${task.short}`);
  });
  const rest = marked().slice(CHIPS);
  const more = rest.length ? el("select", { "aria-label": "Close the heads of another task", "data-part": "more-tasks", on: { change: (event) => { if (event.target.value) toggleAll(topHeads(event.target.value)); } } }, el("option", { value: "" }, `${rest.length} more tasks …`), rest.map((task) => el("option", { value: task.name }, task.short))) : null;
  const count = closedHeads().length || Math.floor(state.alpha * size());
  const alpha = marked().length ? el("label", { class: "alpha" }, "α ", el("input", { type: "range", min: 1, max: 90, value: Math.round(100 * state.alpha), "aria-label": "Fraction of all heads that count as a task’s own, percent", "data-part": "alpha", on: { input: (event) => { state.alpha = event.target.value / 100; place("alpha-text").textContent = percent(state.alpha); paintMap(); } , change: drawSets } }), el("output", { "data-part": "alpha-text" }, percent(state.alpha))) : null;
  const roles = Object.keys(lab.roles);
  const role = roles.length ? el("select", { "aria-label": "Close the heads of a role", "data-part": "roles", on: { change: (event) => { if (event.target.value) toggleAll(lab.roles[event.target.value].map(([l, h]) => l * lab.heads + h)); } } }, el("option", { value: "" }, "Role …"), roles.map((name) => el("option", { value: name }, `${name} (${lab.roles[name].length})`))) : null;
  const mode = look.effects ? el("div", { class: "segments", role: "group", "aria-label": "What the map shows" }, segments([{ key: "tasks", label: "Tasks" }, { key: "effect", label: "Effect" }], look.mode, (key) => { look.mode = key; drawSets(); paintMap(); })) : null;
  put("sets", chips, more, alpha, role,
    el("button", { type: "button", "data-do": "random", on: { click: () => randomSet(count) } }, `Random ${count}`),
    el("button", { type: "button", on: { click: () => change({ gates: state.gates.map((gate, i) => (alive(i) ? 1 - gate : 1)) }) } }, "Invert"),
    el("button", { type: "button", "data-do": "open", on: { click: (event) => { event.stopPropagation(); change({ gates: allOpen() }); } } }, "Open all"), mode);
}

function randomSet(count) {
  const pool = living();
  for (let i = pool.length - 1; i > 0; i -= 1) {
    const j = Math.floor(Math.random() * (i + 1));
    [pool[i], pool[j]] = [pool[j], pool[i]];
  }
  const gates = allOpen();
  for (const i of pool.slice(0, count)) gates[i] = 0;
  change({ gates });
}
