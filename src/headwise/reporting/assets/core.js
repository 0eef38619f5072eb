/* Elements, numbers and colours: what every other part of the page is made with. */
const SVG = "http://www.w3.org/2000/svg";

function fill(node, options, children) {
  for (const [name, value] of Object.entries(options || {})) {
    if (value === undefined || value === null) continue;
    if (name === "style") for (const [key, v] of Object.entries(value)) node.style.setProperty(key, v);
    else if (name === "on") for (const [event, f] of Object.entries(value)) node.addEventListener(event, f);
    else node.setAttribute(name, value);
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return node;
}

/* Text only ever enters as text nodes: names from data can never become markup. */
const el = (tag, options, ...children) => fill(document.createElement(tag), options, children);
const svg = (tag, options, ...children) => fill(document.createElementNS(SVG, tag), options, children);

const part = (view, name) => view.root.querySelector(`[data-part="${name}"]`);

function show(view, name, ...children) {
  const place = part(view, name);
  if (place) place.replaceChildren(...children.flat(Infinity).filter((child) => child !== null));
  return place;
}

const known = (value) => value !== null && value !== undefined && Number.isFinite(value);
const clamp = (value, low = 0, high = 1) => Math.min(high, Math.max(low, value));
const sum = (values) => values.reduce((a, b) => a + b, 0);

function number(value, digits = 3) {
  if (!known(value)) return "–";
  if (value !== 0 && Math.abs(value) < 0.001) return value.toExponential(1).replace("-", "−");
  return Number(value.toPrecision(digits)).toString().replace("-", "−");
}

const fixed = (value) => (known(value) ? value.toFixed(3).replace("-", "−") : "–");
const percent = (value, digits = 0) => (known(value) ? `${(100 * value).toFixed(digits)}\u00a0%` : "–");

function points(value, digits = 1) {
  if (!known(value)) return "–";
  const text = (100 * value).toFixed(digits);
  if (Number(text) === 0) return (0).toFixed(digits);
  return (value > 0 ? `+${text}` : text).replace("-", "−");
}

function chance(p) {
  if (!known(p)) return "";
  return p < 0.001 ? "p < 0.001" : `p = ${Number(p.toPrecision(2))}`;
}

/* The ramp runs from dark to light. On paper much is dark, at night much is bright; light-dark() holds both. */
const RAMP = page.ramp.map((hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16)));

function ramp(t) {
  const at = clamp(t) * (RAMP.length - 1);
  const low = Math.min(Math.floor(at), RAMP.length - 2);
  const mix = RAMP[low].map((c, i) => Math.round(c + (RAMP[low + 1][i] - c) * (at - low)));
  return `rgb(${mix.join(" ")})`;
}

const shade = (t) => `light-dark(${ramp(1 - t)}, ${ramp(0.06 + 0.94 * t)})`;
/* Letters on a shade: dark or light, whichever has the higher contrast. */
const linear = (c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
const inkFor = (rgb) => { const [r, g, b] = rgb.match(/[\d.]+/g).map((c) => linear(c / 255)); return 0.2126 * r + 0.7152 * g + 0.0722 * b < 0.179 ? "#fff" : "#000"; };
const inkOn = (t) => `light-dark(${inkFor(ramp(1 - t))}, ${inkFor(ramp(0.06 + 0.94 * t))})`;
const rampBar = () => `linear-gradient(to right, ${[...Array(11).keys()].map((i) => shade(i / 10)).join(", ")})`;
const taskColour = (i) => page.colours[i % page.colours.length];
const taskClass = (i) => `c${i % page.colours.length}`;
const dot = (i) => el("i", { class: `dot ${taskClass(i)}` });
/* A task's colour with its letter: the second cue. */
const badge = (i, letter) => el("i", { class: `badge ${taskClass(i)}`, "aria-hidden": "true" }, letter);

/* One row of buttons of which one is pressed. */
function segments(options, chosen, choose) {
  return options.map(({ key, label, dot: mark }) =>
    el("button", { type: "button", "aria-pressed": key === chosen, "data-key": key, on: { click: () => choose(key) } }, mark, label));
}
