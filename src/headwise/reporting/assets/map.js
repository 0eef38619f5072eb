/* The head map: layers x heads, coloured by what the reader asks for. */
const MODES = { owner: "Owner", importance: "Importance", probe: "Probe", gate: "Gate" };

function colourings(view) {
  const { probes, gates } = view.study;
  return {
    owner: view.tasks.map((task) => task.name),
    importance: view.tasks.map((task) => task.name),
    probe: Object.keys(probes || {}),
    gate: Object.keys(gates || {}),
  };
}

function drawControls(view) {
  const choices = colourings(view);
  const modes = Object.keys(MODES).filter((mode) => choices[mode].length);
  show(view, "modes", segments(modes.map((key) => ({ key, label: MODES[key] })), view.state.mode, (mode) => {
    setColouring(view, mode, choices[mode][0]);
  }));
  drawChoices(view, choices[view.state.mode]);
}

function drawChoices(view, names) {
  const byOwner = view.state.mode === "owner";
  const place = show(view, "choices", names.map((name) => {
    const task = view.byName[name];
    const pressed = !byOwner && name === view.state.which;
    return el("button", { type: "button", "aria-pressed": pressed, "data-key": name, title: (task && view.study.withheld[name]) || (byOwner ? `Importance for ${name}` : null),
      on: { click: () => setColouring(view, byOwner ? "importance" : view.state.mode, name) } },
    task && view.state.mode !== "probe" ? dot(task.position) : null, name, task && view.study.withheld[name] ? el("small", {}, " (withheld)") : null);
  }));
  place.setAttribute("aria-label", byOwner ? "Tasks" : MODES[view.state.mode]);
}

function setColouring(view, mode, which) {
  Object.assign(view.state, { mode, which });
  drawControls(view);
  paint(view);
}

/* Cells are made once, top layer first; painting only changes their colours. */
function drawMap(view) {
  view.cells = [];
  const group = view.study.model.kv_heads ? view.H / view.study.model.kv_heads : view.H;
  const rows = [...Array(view.L).keys()].reverse().map((layer) => {
    const cells = [...Array(view.H).keys()].map((h) => makeCell(view, layer * view.H + h, h > 0 && group > 1 && h % group === 0));
    return el("div", { role: "row", class: "row" }, el("span", { role: "rowheader", class: "tick" }, `${layer}`), cells);
  });
  const foot = el("div", { class: "row foot", "aria-hidden": "true" }, el("span", { class: "tick" }),
    [...Array(view.H).keys()].map((h) => el("span", { class: "tick" }, `${h}`)));
  const grid = show(view, "map", rows, foot);
  fill(grid, { role: "grid", "aria-label": "Head map: layers by heads", style: { "--heads": view.H },
    on: { keydown: (event) => steer(view, event), mouseleave: hideTip } }, []);
  grid.classList.toggle("dense", view.L > 12 || view.H > 12);
  view.cells[0].tabIndex = 0;
}

function makeCell(view, head, edge) {
  const cell = el("div", { role: "gridcell", class: edge ? "cell edge" : "cell", tabindex: -1, "data-head": headName(view, head),
    on: {
      click: () => pin(view, view.state.pinned === head ? null : head),
      mouseenter: () => showTip(headTip(view, head), cell),
      focus: () => { rove(view, head); showTip(headTip(view, head), cell); },
      blur: hideTip,
    } });
  view.cells[head] = cell;
  return cell;
}

function rove(view, head) {
  for (const cell of view.cells) cell.tabIndex = -1;
  view.cells[head].tabIndex = 0;
}

function steer(view, event) {
  const head = view.cells.indexOf(event.target);
  const layer = Math.floor(head / view.H), h = head % view.H;
  const moves = {
    ArrowUp: [layer + 1, h], ArrowDown: [layer - 1, h], ArrowLeft: [layer, h - 1], ArrowRight: [layer, h + 1],
    Home: [layer, 0], End: [layer, view.H - 1], PageUp: [view.L - 1, h], PageDown: [0, h],
  };
  if (head < 0) return;
  if (event.key === "Enter" || event.key === " ") pin(view, head);
  else if (moves[event.key]) {
    const [toLayer, toHead] = moves[event.key];
    view.cells[clamp(toLayer, 0, view.L - 1) * view.H + clamp(toHead, 0, view.H - 1)].focus();
  } else return;
  event.preventDefault();
}

/* A head that no measure knows is cut away. */
function isCut(view, head) {
  const measures = view.tasks.length ? view.tasks.map((task) => task.scores) : Object.values(view.study.probes || {}).map((probe) => flat(probe.accuracy));
  return measures.every((values) => !known(values[head]));
}

function paint(view) {
  const colour = painter(view);
  view.cells.forEach((cell, head) => {
    const cut = isCut(view, head);
    const { background, ring, text } = cut ? { background: "" } : colour(head);
    cell.style.background = background;
    cell.style.setProperty("--ring", ring || "transparent");
    cell.classList.toggle("cut", cut);
    cell.classList.toggle("ringed", Boolean(ring));
    cell.textContent = text || "";
    cell.setAttribute("aria-label", spoken(view, head));
    cell.setAttribute("aria-selected", view.state.pinned === head);
  });
}

function painter(view) {
  const { mode, which } = view.state;
  if (mode === "owner") { legendOwners(view); return (head) => ownerPaint(view, head); }
  const scale = mode === "importance" ? importanceScale(view) : mode === "probe" ? probeScale(view) : gateScale(view);
  legendScale(view, scale);
  const task = view.byName[which];
  const set = mode === "importance" ? view.sets[view.tasks.indexOf(task)] : null;
  return (head) => ({
    background: known(scale.values[head]) ? shade((scale.values[head] - scale.low) / (scale.high - scale.low || 1)) : "",
    ring: set && set.has(head) ? taskColour(task.position) : null,
  });
}

/* Beyond this many tasks stripes would be confetti: the cell turns grey and says how many. */
const mostStripes = (view) => (view.tasks.length > 5 ? 2 : 4);
const manyPaint = (share) => `color-mix(in srgb, var(--many) ${Math.round(38 + 62 * share)}%, var(--panel))`;

/* A head of one task is plain, a head of several is striped, a head of none keeps a breath of its owner's colour. */
function ownerPaint(view, head) {
  const members = view.members[head];
  if (members.length > mostStripes(view)) return { background: manyPaint(members.length / view.tasks.length), text: `${members.length}` };
  if (members.length === 0) {
    const first = owner(view, head);
    return { background: first ? `color-mix(in srgb, ${taskColour(first.position)} 14%, var(--panel))` : "" };
  }
  const step = 100 / members.length;
  const stops = members.map((task, i) => `${taskColour(task.position)} ${i * step}% ${(i + 1) * step}%`);
  return { background: `linear-gradient(115deg, ${stops.join(", ")})` };
}

/* A few giants must not drown the rest: the scale ends at the 98th percentile. */
function importanceScale(view) {
  const task = view.byName[view.state.which];
  const high = task.scores[task.order[Math.floor(0.02 * task.order.length)]];
  return { values: task.scores, low: Math.min(0, task.low), high, more: high < task.high, title: `importance for ${task.name}`, ring: true };
}

function probeScale(view) {
  const probe = view.study.probes[view.state.which];
  const values = flat(probe.accuracy);
  const present = values.filter(known);
  const low = known(probe.chance) ? Math.min(probe.chance, Math.min(...present)) : Math.min(...present);
  return { values, low, high: Math.max(...present), title: `${probe.metric || "accuracy"} of a probe for ${view.state.which}`,
    note: known(probe.chance) ? `chance ${number(probe.chance)}` : "" };
}

function gateScale(view) {
  return { values: flat(view.study.gates[view.state.which]), low: 0, high: 1, title: `gate opening for ${view.state.which}` };
}

function legendScale(view, scale) {
  show(view, "legend",
    el("span", {}, number(scale.low)), el("i", { class: "rampbar", style: { background: rampBar() } }),
    el("span", {}, `${scale.more ? "≥ " : ""}${number(scale.high)}`), el("span", { class: "about" }, scale.title),
    scale.note ? el("span", { class: "about" }, scale.note) : null,
    scale.ring ? el("span", { class: "about" }, el("i", { class: `swatch ringed ${taskClass(view.byName[view.state.which].position)}` }), `among the top ${taken(view)}`) : null);
}

function legendOwners(view) {
  const stripes = view.tasks.slice(0, 2).map((task, i) => `${taskColour(task.position)} ${50 * i}% ${50 * i + 50}%`);
  const colour = taskColour(view.tasks[0].position);
  show(view, "legend",
    el("span", { class: "about" }, el("i", { class: "swatch", style: { background: colour } }), "top head of this task"),
    view.tasks.length > 1 ? el("span", { class: "about" }, el("i", { class: "swatch", style: { background: `linear-gradient(115deg, ${stripes.join(", ")})` } }), "shared") : null,
    view.tasks.length > mostStripes(view) ? el("span", { class: "about" }, el("i", { class: "swatch", style: { background: manyPaint(0.7) } }), "shared by that many tasks") : null,
    el("span", { class: "about" }, el("i", { class: "swatch", style: { background: `color-mix(in srgb, ${colour} 14%, var(--panel))` } }), "of no task, tinted by the task it matters most to"));
}

function spoken(view, head) {
  const lines = view.tasks.map((task) => `${task.name} ${scoreText(task, task.scores[head])}${task.rank[head] ? `, rank ${task.rank[head]}` : ""}`);
  return `Layer ${Math.floor(head / view.H)}, head ${head % view.H}. ${lines.join("; ")}`;
}

/* The one tooltip of the page. */
const tip = document.querySelector('[data-role="tip"]');

function hideTip() { tip.hidden = true; }

function showTip(content, anchor) {
  tip.replaceChildren(...[content].flat());
  tip.hidden = false;
  const box = anchor.getBoundingClientRect(), size = tip.getBoundingClientRect();
  const below = box.bottom + 8 + size.height < innerHeight;
  tip.style.left = `${clamp(box.left + box.width / 2 - size.width / 2, 8, Math.max(8, innerWidth - size.width - 8))}px`;
  tip.style.top = `${below ? box.bottom + 8 : Math.max(8, box.top - size.height - 8)}px`;
}

function headTip(view, head) {
  const rows = view.tasks.map((task, i) => el("tr", { class: view.sets[i].has(head) ? "in" : "" },
    el("th", {}, dot(task.position), task.name), el("td", {}, scoreText(task, task.scores[head])),
    el("td", { class: "rank" }, task.rank[head] ? `#${task.rank[head]}` : "cut")));
  const probes = Object.entries(view.study.probes || {}).map(([name, probe]) =>
    el("tr", {}, el("th", {}, name), el("td", {}, fixed(flat(probe.accuracy)[head])), el("td", { class: "rank" }, "probe")));
  return [el("b", {}, `Head ${headName(view, head)}`), el("table", {}, el("tbody", {}, rows, probes))];
}
