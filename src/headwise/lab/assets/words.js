/* The text as tokens, with the attention of one head as arcs above them. */
let seen = null; /* { tokens, weights: Uint8Array (H, T, T), layer } */

function drawLooking(newLayer) {
  if (!ABLE.attention) return; /* a page without a server has no maps */
  const layer = Math.floor(look.at / lab.heads), head = look.at % lab.heads;
  place("layer").value = layer;
  place("head").value = head;
  put("looking", "attention of ", el("b", {}, nameOf(look.at)));
  if (newLayer || !seen || seen.layer !== layer) lookSoon();
  else drawArcs();
}

let lookTimer = 0;
function lookSoon() { clearTimeout(lookTimer); lookTimer = setTimeout(fetchAttention, 120); }

async function fetchAttention() {
  if (!ABLE.attention || !state.text.trim()) { seen = null; put("words"); return; }
  const layer = Math.floor(look.at / lab.heads);
  try {
    const map = await ask("attention", { ...asked(), layer });
    seen = { layer, tokens: map.tokens, weights: Uint8Array.from(atob(map.weights), (c) => c.charCodeAt(0)) };
    drawArcs();
  } catch (error) {
    if (error instanceof Unheard) return;
    seen = null;
    put("words", el("p", { class: "quiet" }, `No attention to draw: ${error.message}`));
  }
}

function drawArcs() {
  if (!seen) return;
  const n = seen.tokens.length, head = look.at % lab.heads, from = head * n * n;
  const widths = seen.tokens.map((token) => 14 + 8.6 * Math.max(1, token.length));
  const middle = widths.map((width, i) => sum(widths.slice(0, i)) + width / 2), total = sum(widths), height = 92;
  const arcs = [];
  for (let i = 0; i < n; i += 1) {
    for (let j = 0; j < n; j += 1) {
      const weight = seen.weights[from + i * n + j] / 255;
      if (weight < 0.05) continue;
      const rise = 10 + (height - 36) * (1 - Math.exp(-Math.abs(middle[i] - middle[j]) / 320)); /* far arcs stay apart */
      const line = i === j ? `M${middle[i] - 5} ${height - 22}a5 9 0 1 1 10 0` : `M${middle[i]} ${height - 22}C${middle[i]} ${height - 22 - rise * 1.3} ${middle[j]} ${height - 22 - rise * 1.3} ${middle[j]} ${height - 22}`;
      arcs.push(svg("path", { d: line, class: "arc", "data-from": i, "stroke-width": (0.5 + 2.6 * weight).toFixed(2), "stroke-opacity": clamp(0.12 + weight).toFixed(2) }, svg("title", {}, `${seen.tokens[i]} → ${seen.tokens[j]} ${weight.toFixed(2)}`)));
    }
  }
  const names = seen.tokens.map((token, i) => svg("text", { x: middle[i], y: height - 6, "text-anchor": "middle", class: /^\[|^</.test(token) ? "special" : "", on: { pointerenter: () => onlyFrom(i), pointerleave: () => onlyFrom(null) } }, token));
  const strip = put("words", svg("svg", { viewBox: `0 0 ${Math.ceil(total)} ${height}`, width: Math.ceil(total), height, "aria-hidden": "true" }, arcs, names));
  strip.setAttribute("aria-label", `Attention of head ${nameOf(look.at)}: ${strongest(from, n)}`);
}

function onlyFrom(i) {
  for (const arc of document.querySelectorAll(".arc")) arc.classList.toggle("dim", i !== null && Number(arc.dataset.from) !== i);
}

/* The same for those who hear the page. */
function strongest(from, n) {
  const best = [...Array(n).keys()].map((i) => { const row = seen.weights.slice(from + i * n, from + (i + 1) * n), j = row.indexOf(Math.max(...row)); return [seen.tokens[i], seen.tokens[j], row[j] / 255]; });
  return best.slice(0, 24).map(([a, b, w]) => `${a} to ${b} ${w.toFixed(2)}`).join(", ");
}
