/* Every task's answer with all heads open and with heads closed, side by side. */
const rows = {};

const taskRows = () => [...lab.tasks, ...(lab.form === "causal" || lab.form === "masked" ? [{ name: "next word", short: "next word", letter: "…", kind: "next" }] : [])];

function drawAnswers() {
  put("answers", taskRows().map((task) => {
    const at = position(task.name);
    rows[task.name] = { before: el("div", { class: "before" }), after: el("div", { class: "after" }), dev: el("div", { class: "dev" }), more: el("div") };
    const row = rows[task.name];
    row.root = el("div", { class: `answer ${at < 0 ? "" : taskClass(at)}`, "data-task": task.name },
      el("div", { class: "name", title: task.name }, at < 0 ? null : el("i", { class: "dot" }), el("b", {}, task.letter), ` ${task.short}`),
      el("div", { class: "both" }, row.before, row.after), row.dev,
      el("details", {}, el("summary", {}, el("span", { class: "sr" }, `All of ${task.short}`), "more"), row.more));
    return row.root;
  }));
}

function showAnswers(answers) {
  for (const [task, row] of Object.entries(rows)) {
    const [before, after] = [answers.before[task], answers.after[task]];
    row.root.classList.toggle("off", Boolean(!after || after.problem));
    row.root.classList.toggle("flipped", changed(before, after));
    row.before.replaceChildren(...shownAnswer(before, "before", null));
    row.after.replaceChildren(...shownAnswer(after, "after", before));
    row.more.replaceChildren(...details(before, after));
  }
}

const key = (answer) => JSON.stringify(answer?.label ?? answer?.tags ?? answer?.spans ?? answer?.answer ?? answer?.tree ?? answer?.frames ?? (answer?.heads ? [answer.heads, answer.labels] : answer?.exact ?? null));
const changed = (before, after) => Boolean(before && after && !before.problem && !after.problem && key(before) !== key(after));
const chanceOf = (answer) => {
  if (Array.isArray(answer.probabilities) && answer.form === "tagged") return sum(answer.probabilities) / Math.max(1, answer.probabilities.length);
  const chances = Array.isArray(answer.probabilities) ? Object.fromEntries(answer.probabilities) : answer.probabilities;
  return chances ? chances[answer.label] : answer.form === "next" ? answer.words[0][1] : null;
};

/* A bar, a word, a number; the word is set in a box where it is another one than before. */
function shownAnswer(answer, when, before) {
  const tag = el("span", { class: "when" }, when);
  if (!answer) return [tag, el("span", { class: "quiet" }, "–")];
  if (answer.problem) return [tag, el("span", { class: "quiet" }, when === "after" ? answer.problem : "–")];
  const chance = answer.form === "graded" ? null : chanceOf(answer);
  const moved = before && changed(before, answer);
  return [tag, el("span", { class: known(chance) ? `meter ${when}` : "" }, known(chance) ? el("i", { style: { width: `${100 * chance}%` } }) : null),
    el("span", { class: moved ? "word moved" : "word" }, wordOf(answer, before)), el("span", { class: "chance" }, known(chance) ? chance.toFixed(2) : "")];
}

function wordOf(answer, before) {
  if (answer.form === "graded") return answer.value.toFixed(2);
  if (answer.form === "tagged") return before ? `${answer.tags.filter((tag, i) => tag !== before.tags[i]).length} of ${answer.tags.length} differ` : `${answer.tags.length} tags`;
  if (answer.form === "spanned") return before ? `${answer.spans.filter((span) => before.spans.some((one) => String(one) === String(span))).length} of ${before.spans.length} spans kept` : `${answer.spans.length} spans`;
  if (answer.form === "parsed") return before ? `${answer.heads.filter((head, i) => head !== before.heads[i] || answer.labels[i] !== before.labels[i]).length} of ${answer.heads.length} arcs differ` : `${answer.heads.length} arcs`;
  if (answer.form === "continuation") return `${answer.exact ? "exact" : "not exact"}, log p ${answer.total.toFixed(2)}`;
  if (answer.form === "next") return `“${answer.label}”`;
  return String(answer.label ?? answer.answer ?? answer.tree ?? answer.form);
}

function details(before, after) {
  if (!after || after.problem) return [];
  const pairs = (answer) => (answer.form === "next" ? answer.words : (Array.isArray(answer.probabilities) && answer.form === "labelled" ? answer.probabilities : answer.form === "labelled" ? Object.entries(answer.probabilities) : null));
  const [old, now] = [before, after].map(pairs);
  if (!now) return [el("p", { class: "quiet" }, plainText(before)), el("p", {}, plainText(after))];
  if (after.form === "next") return [el("div", { class: "columns" }, [["before", old], ["after", now]].map(([name, list]) => el("ol", {}, el("li", { class: "quiet head" }, name), list.map(([word, chance]) => el("li", {}, el("code", {}, word), ` ${chance.toFixed(3)}`)))))];
  const then = Object.fromEntries(old);
  return [el("table", {}, el("thead", {}, el("tr", {}, ["label", "before", "after"].map((name) => el("th", { scope: "col" }, name)))),
    el("tbody", {}, now.map(([label, chance]) => el("tr", {}, el("th", { scope: "row" }, label), el("td", {}, (then[label] ?? 0).toFixed(3)), el("td", {}, chance.toFixed(3))))))];
}

function plainText(answer) {
  if (answer.form === "tagged") return answer.words.map((word, i) => `${word}/${answer.tags[i]}`).join(" ");
  if (answer.form === "spanned") return answer.spans.map(([start, end, label]) => `${label}: ${answer.words.slice(start, end).join(" ")}`).join("; ") || "no spans";
  if (answer.form === "parsed") return answer.words.map((word, i) => `${word} ←${answer.labels[i]}– ${answer.heads[i] ? answer.words[answer.heads[i] - 1] : "root"}`).join("; ");
  return JSON.stringify(answer.frames ?? answer.answer ?? answer.tree ?? answer.label ?? answer.value);
}

/* Development scores: a bar that fills, its interval, a tick where it stands with all heads. */
function showScore(score) {
  const row = rows[score.task];
  if (!row) return;
  if (score.problem) { row.dev.replaceChildren(el("span", { class: "quiet" }, score.problem)); return; }
  const at = (value) => `${100 * clamp(value)}%`;
  row.dev.replaceChildren(
    el("span", { class: "meter score" }, el("i", { style: { width: at(score.value) } }), el("u", { style: { left: at(score.low), width: at(score.high - score.low) } }), el("s", { style: { left: at(score.intact) } })),
    el("span", { class: "value", title: `${score.metric}, 95 % CI ${score.low.toFixed(3)} to ${score.high.toFixed(3)}; with all heads ${score.intact.toFixed(3)}` }, el("b", {}, score.value.toFixed(3)), known(score.change[0]) ? ` ${points(score.change[0])}` : "",
      el("small", {}, ` ${known(score.change[1]) ? `${points(score.change[1])} to ${points(score.change[2])}` : ""}`)),
    el("small", { class: "quiet" }, `${score.metric.replaceAll("_", " ")}, n = ${score.n}${score.n < score.of ? ` of ${score.of}` : ""}`));
}
