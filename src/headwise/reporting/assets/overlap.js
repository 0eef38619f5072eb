/* What the slider moves first: heads in common, and heads per layer. */
const heading = (task, upright) => el("th", { scope: "col", class: upright ? "upright" : "", title: task.name }, el("span", {}, dot(task.position), task.name));

function drawOverlap(view) {
  if (!part(view, "overlap")) return;
  const { tasks } = view, k = Math.max(...view.sets.map((set) => set.size)), upright = tasks.length > 5;
  const head = el("tr", {}, el("td", {}), tasks.slice(0, -1).map((task) => heading(task, upright)));
  const rows = tasks.slice(1).map((task, i) => el("tr", {}, el("th", { scope: "row", title: task.name }, dot(task.position), task.name),
    tasks.slice(0, -1).map((other, j) => (j <= i ? overlapCell(view, i + 1, j, k) : el("td", { class: "void" })))));
  show(view, "overlap", el("table", { class: upright ? "heat dense" : "heat" }, el("thead", {}, head), el("tbody", {}, rows)));
  const living = new Set(tasks.flatMap((task) => task.order)).size; /* cut heads have no score, and no set can hold them */
  const from = living < view.L * view.H ? `, as ${living} heads remain` : "";
  show(view, "overlap-note", `Of ${k} heads each; two random sets would share ${number((k * k) / living, 2)}${from}.`);
}

function overlapCell(view, i, j, k) {
  const count = shared(view, i, j), share = k ? count / k : 0;
  const title = `${view.tasks[i].name} and ${view.tasks[j].name}: ${count} of ${k} heads, ${percent(share)}`;
  return el("td", { title, "data-shared": count, style: { background: shade(0.9 * share), color: inkOn(0.9 * share) } },
    el("b", {}, `${count}`), el("small", {}, percent(share)));
}

function drawLayers(view) {
  if (!part(view, "layers")) return;
  const upright = view.tasks.length > 5;
  const counts = view.tasks.map((_, i) => perLayer(view, i));
  const most = Math.max(1, ...counts.flat());
  const head = el("tr", {}, el("td", {}), view.tasks.map((task) => heading(task, upright)));
  const rows = [...Array(view.L).keys()].reverse().map((layer) => el("tr", {}, el("th", { scope: "row" }, `${layer}`),
    view.tasks.map((task, i) => el("td", { title: `${task.name}, layer ${layer}: ${counts[i][layer]} of ${view.H} heads` },
      el("i", { class: `layer-bar ${taskClass(task.position)}`, style: { width: `${(100 * counts[i][layer]) / most}%` } })))));
  show(view, "layers", el("table", { class: view.L > 12 ? "layers dense" : "layers" }, el("thead", {}, head), el("tbody", {}, rows)));
  show(view, "layers-note", `${most} of ${view.H} heads`);
}
