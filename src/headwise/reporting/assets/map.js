/* The head map: layers x heads, coloured by what the reader asks for. */
const MODES = { owner: "Tasks", importance: "Importance", role: "Role", probe: "Probe", gate: "Gate" };

function colourings(view) {
  const { probes, gates } = view.study;
  return {
    owner: view.tasks.map((task) => task.name),
    importance: view.tasks.map((task) => task.name),
    role: Object.keys((view.study.roles || {}).about || {}),
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
    return el("button", { type: "button", "aria-pressed": pressed, "data-key": name, title: (task && view.study.withheld[name]) || (byOwner ? `Importance for ${name}` : view.state.mode === "role" ? view.study.roles.about[name] : null),
      on: { click: () => setColouring(view, byOwner ? "importance" : view.state.mode, name), mouseenter: () => single(view, task), mouseleave: () => single(view, null) } },
    task && !["probe", "role"].includes(view.state.mode) ? badge(task.position, task.letter) : null, task ? task.short : name, task && view.study.withheld[name] ? el("small", {}, " (withheld)") : null);
  }));
  place.setAttribute("aria-label", byOwner ? "Tasks" : MODES[view.state.mode]);
}

function setColouring(view, mode, which) {
  Object.assign(view.state, { mode, which });
  drawControls(view);
  paint(view);
  if (view.ready) toAddress(view);
}

/* Cells are made once, the first layer at the bottom; a model with many more layers than heads lies on its side, first
   layer on the left. Painting only changes what is in the cells. */
function drawMap(view) {
  view.cells = [];
  view.lying = view.L > 12 && view.L > 1.2 * view.H;
  const group = view.study.model.kv_heads ? view.H / view.study.model.kv_heads : view.H;
  const [down, across] = view.lying ? [view.H, view.L] : [view.L, view.H];
  const rows = [...Array(down).keys()].reverse().map((y) => {
    const cells = [...Array(across).keys()].map((x) => {
      const [layer, h] = view.lying ? [x, y] : [y, x];
      return makeCell(view, layer * view.H + h, h > 0 && group > 1 && h % group === 0);
    });
    return el("div", { role: "row", class: "row" }, el("span", { role: "rowheader", class: "tick", "aria-label": `${y}` }, tickOf(y, down)), cells);
  });
  const names = view.lying ? "layer → · head ↑" : "head → · layer ↑";
  const foot = el("div", { class: "row foot", "aria-hidden": "true" }, el("span", { class: "tick" }),
    [...Array(across).keys()].map((x) => el("span", { class: "tick" }, tickOf(x, across))));
  const grid = show(view, "map", rows, foot, el("div", { class: "tick axes", "aria-hidden": "true" }, names));
  fill(grid, { role: "grid", "aria-label": view.lying ? "Head map: heads by layers, the first layer on the left" : "Head map: layers by heads, the first layer at the bottom", style: { "--across": across, "--down": down },
    on: { keydown: (event) => steer(view, event), mouseleave: hideTip } }, []);
  grid.classList.toggle("dense", down > 12 || across > 12);
  grid.classList.toggle("tiny", down > 32 || across > 40);
  grid.classList.toggle("lying", view.lying);
  setUpZoom(view, grid);
  view.cells[0].tabIndex = 0;
}

/* Of many numbers every fourth. */
const tickOf = (number, of) => (of > 40 && number % 4 ? "" : `${number}`);

/* Heads too small to hit are made larger in a window that scrolls. */
function setUpZoom(view, grid) {
  const button = part(view, "zoom");
  button.hidden = !(grid.classList.contains("tiny") || (view.L * view.H > 200 && innerWidth < 700));
  button.addEventListener("click", () => {
    const on = grid.classList.toggle("zoomed");
    button.setAttribute("aria-pressed", on);
    button.textContent = on ? "Fit" : "Zoom";
  });
}

/* While a task is pointed at, the marks of the others fade. */
function single(view, task) {
  part(view, "map").querySelectorAll(".mark").forEach((mark) => mark.classList.toggle("faded", Boolean(task) && !mark.classList.contains(taskClass(task.position))));
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
  const up = view.lying ? [0, 1] : [1, 0], right = view.lying ? [1, 0] : [0, 1];
  const go = ([dl, dh], n = 1) => [layer + n * dl, h + n * dh];
  const moves = {
    ArrowUp: go(up), ArrowDown: go(up, -1), ArrowLeft: go(right, -1), ArrowRight: go(right),
    Home: [view.lying ? 0 : layer, view.lying ? h : 0], End: [view.lying ? view.L - 1 : layer, view.lying ? h : view.H - 1],
    PageUp: [view.lying ? layer : view.L - 1, view.lying ? view.H - 1 : h], PageDown: [view.lying ? layer : 0, view.lying ? 0 : h],
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
    const { background, ring, text, marks } = cut ? { background: "" } : colour(head);
    cell.style.background = background;
    cell.style.setProperty("--ring", ring || "transparent");
    cell.classList.toggle("cut", cut);
    cell.classList.toggle("ringed", Boolean(ring));
    cell.replaceChildren(...(marks || [text || ""]));
    cell.setAttribute("aria-label", spoken(view, head));
    cell.setAttribute("aria-selected", view.state.pinned === head);
  });
}

function painter(view) {
  const { mode, which } = view.state;
  if (mode === "owner") { legendOwners(view); return (head) => ownerPaint(view, head); }
  if (mode === "role") { legendRole(view, which); return (head) => rolePaint(view, head, which); }
  const scale = mode === "importance" ? importanceScale(view) : mode === "probe" ? probeScale(view) : gateScale(view);
  legendScale(view, scale);
  const task = view.byName[which];
  const set = mode === "importance" ? view.sets[view.tasks.indexOf(task)] : null;
  return (head) => ({
    background: known(scale.values[head]) ? shade((scale.values[head] - scale.low) / (scale.high - scale.low || 1)) : "",
    ring: set && set.has(head) ? taskColour(task.position) : null,
  });
}

/* Each task has its place in a cell, its letter and its colour: filled where its set holds the head for certain. Beyond
   nine tasks marks would be confetti: the cell turns grey and says how many. */
const MARKED = 9;
const manyPaint = (share) => `color-mix(in srgb, var(--many) ${Math.round(38 + 62 * share)}%, var(--panel))`;

function ownerPaint(view, head) {
  const members = view.members[head], count = view.tasks.length;
  if (count > MARKED) return members.length ? { background: manyPaint(members.length / count), text: `${members.length}` } : { background: "" };
  const side = count > 4 ? 3 : count > 1 ? 2 : 1;
  return { background: "", marks: members.map((task) => {
    const at = view.tasks.indexOf(task);
    return el("i", { class: `mark ${taskClass(task.position)}${certain(view, task, head) ? "" : " hollow"} m${side}`, style: { "grid-area": `${1 + Math.floor(at / side)} / ${1 + (at % side)}` }, "data-letter": task.letter });
  }) };
}

/* Heads that hold a role, darker for more attention beyond the control; a mark says so without colour. */
const heldBy = (view, head) => ((view.study.roles || {}).heads || {})[headName(view, head)] || [];

function rolePaint(view, head, role) {
  const held = heldBy(view, head).find((each) => each.role === role), t = held ? 0.15 + 0.8 * clamp(held.lift) : 0;
  return { background: held ? shade(t) : "", marks: [held ? el("b", { class: "held", style: { color: inkOn(t) } }, "●") : ""] };
}

function legendRole(view, role) {
  const count = Object.values(view.study.roles.heads).filter((held) => held.some((each) => each.role === role)).length;
  show(view, "legend", el("span", {}, "0"), el("i", { class: "rampbar", style: { background: rampBar() } }), el("span", {}, "1"),
    el("span", { class: "about" }, `attention beyond the control; ${count} head${count === 1 ? "" : "s"} with this role, significant over texts after Holm: ${view.study.roles.about[role]}`));
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
  const first = view.tasks[0], many = view.tasks.length > MARKED;
  const how = first.chances && Math.abs(view.state.alpha - startAlpha(view)) < 0.005 ? "in 95 % of resamples" : "by 1.64 standard errors";
  show(view, "legend", many ? el("span", { class: "about" }, el("i", { class: "swatch", style: { background: manyPaint(0.7) } }), "top head of that many tasks; choose a task for its own map") : [
    el("span", { class: "about" }, el("i", { class: `swatch mark ${taskClass(first.position)}` }), first.chances || first.stderr ? `top head, ${how}` : "top head"),
    first.chances || first.stderr ? el("span", { class: "about" }, el("i", { class: `swatch mark hollow ${taskClass(first.position)}` }), "above the cut, but not for certain") : null]);
}

function spoken(view, head) {
  const lines = view.tasks.map((task) => `${task.name} ${scoreText(task, task.scores[head])}${task.rank[head] ? `, rank ${task.rank[head]}` : ""}`);
  const many = view.tasks.length > MARKED ? `${view.members[head].length} tasks. ` : "";
  const held = heldBy(view, head).map((each) => each.role);
  return `Layer ${Math.floor(head / view.H)}, head ${head % view.H}. ${many}${lines.join("; ")}${held.length ? `. Roles: ${held.join(", ")}` : ""}`;
}

/* The map for those who read it as text: each task's heads at this α, most important first. */
function drawTable(view) {
  if (!part(view, "as-table")) return;
  show(view, "as-table", el("table", { class: "plain" }, el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "Task"), el("th", { scope: "col" }, `Top heads at α = ${percent(view.state.alpha)}, as layer.head`))),
    el("tbody", {}, view.tasks.map((task) => el("tr", {}, el("th", { scope: "row" }, task.name), el("td", { class: "wrap" }, task.order.slice(0, taken(view)).map((head) => `${headName(view, head)}${certain(view, task, head) ? "" : "?"}`).join(" ")))))),
    el("p", { class: "hint" }, "A question mark: above the cut, but not for certain."), rolesTable(view) || []);
}

function rolesTable(view) {
  const roles = Object.keys((view.study.roles || {}).about || {});
  if (!roles.length) return null;
  const holders = (role) => Object.entries(view.study.roles.heads).filter(([, held]) => held.some((each) => each.role === role)).map(([head]) => head);
  return el("table", { class: "plain" }, el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "Role"), el("th", { scope: "col" }, "Heads that hold it, as layer.head"))),
    el("tbody", {}, roles.map((role) => el("tr", {}, el("th", { scope: "row" }, role), el("td", { class: "wrap" }, holders(role).join(" "))))));
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
    el("th", {}, dot(task.position), task.short), el("td", {}, scoreText(task, task.scores[head])),
    el("td", { class: "rank" }, task.rank[head] ? `#${task.rank[head]}` : "cut")));
  const probes = Object.entries(view.study.probes || {}).map(([name, probe]) =>
    el("tr", {}, el("th", {}, name), el("td", {}, fixed(flat(probe.accuracy)[head])), el("td", { class: "rank" }, "probe")));
  return [el("b", {}, `Head ${headName(view, head)}`), el("table", {}, el("tbody", {}, rows, probes))];
}
