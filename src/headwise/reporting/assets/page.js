/* Opening a study, and the few things that belong to the whole page. */
function openStudy(root, study) {
  const { layers: L, heads: H } = study.model;
  const tasks = study.tasks.map((task, i) => [task, i]).filter(([task]) => study.importance[task.name]).map(([task, i]) => describeTask(study, task, i));
  const alpha = study.dissociation ? study.dissociation.default : 0.3;
  const view = { root, study, L, H, tasks, byName: Object.fromEntries(tasks.map((task) => [task.name, task])),
    state: { alpha, mode: "owner", which: null, pinned: null, example: 0, on: "own metric" } };
  if (!tasks.length) Object.assign(view.state, { mode: "probe", which: Object.keys(study.probes || {})[0] });
  if (tasks.length === 1) Object.assign(view.state, { mode: "importance", which: tasks[0].name });
  drawMap(view);
  setUpDial(view);
  drawControls(view);
  drawMatrixLegend(view);
  setAlpha(view, alpha);
  view.ready = true;
  drawTraining(view);
  drawSimilarity(view);
  fillTracks(view);
  return view;
}

function setUpDial(view) {
  const slider = part(view, "alpha");
  slider.value = Math.round(100 * view.state.alpha);
  slider.addEventListener("input", () => setAlpha(view, Number(slider.value) / 100));
}

function setAlpha(view, alpha) {
  view.state.alpha = alpha;
  select(view);
  part(view, "alpha-text").textContent = `α = ${percent(alpha)}, ${taken(view)} of ${view.L * view.H} heads`;
  paint(view);
  drawCard(view);
  drawMeasured(view);
  for (const draw of [drawTable, drawOverlap, drawLayers, drawDissociation]) soon(view, draw);
  if (view.ready) { toAddress(view); reachScrolled(); }
}

/* What lies below the first screen waits, where there are very many tasks, until the first screen is there. */
const MANY = 20;
function soon(view, draw) {
  if (view.tasks.length <= MANY) { draw(view); return; }
  clearTimeout((view.waiting ||= {})[draw.name]);
  view.waiting[draw.name] = setTimeout(() => draw(view), 60);
}

/* Intervals in tables that stand in the page already. */
function fillTracks(view) {
  const cells = [...view.root.querySelectorAll("td.track")];
  const read = (cell, name) => (cell.dataset[name] === "" ? null : Number(cell.dataset[name]));
  const scores = cells.map((cell) => ({ value: read(cell, "value"), low: read(cell, "low"), high: read(cell, "high") }));
  const all = scores.flatMap((s) => [s.value, s.low, s.high]).filter(known);
  const domain = padded(Math.min(0, ...all), Math.max(0, ...all));
  cells.forEach((cell, i) => cell.replaceChildren(track(scores[i], domain, [0], "")));
}

const views = [];

function openAt(index) {
  document.querySelectorAll(".study").forEach((root, i) => {
    root.hidden = i !== index;
    if (i === index && !views[i]) views[i] = openStudy(root, page.studies[i]);
  });
  document.querySelectorAll("[data-row]").forEach((row) => row.classList.toggle("current", Number(row.dataset.row) === index));
  hideTip();
  reachScrolled();
}

/* The address holds what is shown: #head=5.7&task=sst2&alpha=0.3&study=1, or role=, probe=, gate= in place of task=; #5.7 is head 7 of layer 5. */
const shown = () => views.find((one) => one && !one.root.hidden);

function followLink() {
  const words = new URLSearchParams(/^#\d+\.\d+$/.test(location.hash) ? `head=${location.hash.slice(1)}` : location.hash.slice(1));
  const chooser = document.querySelector('[data-role="study"]'), number = Number(words.get("study"));
  if (chooser && words.has("study") && page.studies[number]) { chooser.value = number; openAt(number); }
  const view = shown(), alpha = Number(words.get("alpha")), task = words.get("task");
  if (!view) return;
  if (words.has("alpha") && alpha >= 0.01 && alpha <= 0.9) { part(view, "alpha").value = Math.round(100 * alpha); setAlpha(view, alpha); }
  if (view.byName[task]) setColouring(view, "importance", task);
  for (const mode of ["role", "probe", "gate"]) if (colourings(view)[mode].includes(words.get(mode))) setColouring(view, mode, words.get(mode));
  const found = /^(\d+)\.(\d+)$/.exec(words.get("head") || "");
  if (found && found[1] < view.L && found[2] < view.H) pin(view, found[1] * view.H + Number(found[2]));
}

function toAddress(view) {
  const { pinned, alpha, mode, which } = view.state, words = new URLSearchParams();
  if (pinned !== null) words.set("head", headName(view, pinned));
  if (mode === "importance" && view.tasks.length > 1) words.set("task", which);
  if (view.tasks.length && ["role", "probe", "gate"].includes(mode)) words.set(mode, which);
  if (view.tasks.length && Math.abs(alpha - (startAlpha(view) ?? 0.3)) > 0.001) words.set("alpha", alpha.toFixed(2));
  if (views.indexOf(view) > 0) words.set("study", views.indexOf(view));
  try { history.replaceState(null, "", words.size ? `#${words}` : location.pathname + location.search); } catch { /* where a page may not name itself */ }
  const lab = document.querySelector('[data-role="lab"]');
  if (!lab) return;
  const heads = pinned !== null ? [pinned] : mode === "importance" && view.byName[which] ? view.byName[which].order.slice(0, taken(view)) : [];
  lab.href = `${lab.href.split("#")[0]}${heads.length ? `#heads=${heads.map((head) => headName(view, head)).join(",")}` : ""}`;
}

async function copyLink(button) {
  toAddress(shown());
  try { await navigator.clipboard.writeText(location.href); button.textContent = "Copied"; } catch { button.textContent = "It is in the address"; }
  setTimeout(() => { button.textContent = "Copy link"; }, 1500);
}

function letGo(event) {
  if (event.key !== "Escape") return;
  hideTip();
  for (const view of views.filter((one) => one && !one.root.hidden)) pin(view, null);
}

function toggleTheme() {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
}

async function copy(button) {
  const text = document.getElementById(button.dataset.copy).textContent;
  const before = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    button.textContent = "Select and copy by hand";
    document.getElementById(button.dataset.copy).hidden = false;
  }
  setTimeout(() => { button.textContent = before; }, 1500);
}

/* What scrolls sideways can be reached by keyboard. */
function reachScrolled() {
  for (const box of document.querySelectorAll(".study:not([hidden]) :is(.scroll, .window)")) {
    if (box.scrollWidth > box.clientWidth + 1 || box.scrollHeight > box.clientHeight + 1) box.tabIndex = 0;
    else box.removeAttribute("tabindex");
  }
}

function redrawCharts() {
  reachScrolled();
  for (const view of views.filter((one) => one && !one.root.hidden)) {
    drawTraining(view);
    drawSimilarity(view);
    if (view.study.dissociation && view.study.dissociation.D) drawCurve(view, view.study.dissociation);
  }
}

function start() {
  const chooser = document.querySelector('[data-role="study"]');
  if (chooser) chooser.addEventListener("change", () => openAt(Number(chooser.value)));
  document.querySelector('[data-role="theme"]').addEventListener("click", toggleTheme);
  document.querySelectorAll('[data-role="link"]').forEach((button) => button.addEventListener("click", () => copyLink(button)));
  document.querySelectorAll("[data-copy]").forEach((button) => button.addEventListener("click", () => copy(button)));
  let waiting = 0;
  addEventListener("resize", () => { cancelAnimationFrame(waiting); waiting = requestAnimationFrame(redrawCharts); });
  addEventListener("scroll", hideTip, { passive: true });
  addEventListener("hashchange", followLink);
  addEventListener("keydown", letGo);
  openAt(chooser ? Number(chooser.value) : 0);
  followLink();
}

start();
