/* The roofline lab: a machine's two limits, the passes measured under them, and one computed pass that moves with the sliders.
 *
 * DATA (built by pages/views/roofline_data.py)
 * {
 *   devices: [{id, name, read, flops, kind: "measured"|"datasheet", source}],   bytes/s and FLOP/s; the first is this machine
 *   points: [{kind, n_sequences, n_tokens, n_cached, seconds, flops, bytes}],   measured passes of this machine
 *   model: {linear, pair, vocabulary, weights, values},     FLOPs per token in the matrices; per query–key pair; for one position's
 *                                                           logits; number of weights; K and V values per position
 *   weights: [{id, bytes, cache}],                          bytes per weight, and per cached value beside such weights
 *   controls: {device, weights, batch, context}, seq, lang, text                seq: see Agreement in shared.js
 * }
 * Sends setStateValue("controls", {..., seq}) when the learner lets go. passOf() is core.prefill.pass_cost for a batch; a test compares.
 */

/* TEXT  aria device weights batch context · x y memory_side compute_side ridge · prefill decode computed_decode computed_prefill
 *   say_memory {batch} {wait} {share} · say_compute {batch} · crossing {n} · crossing_never · intensity time all_tokens one_tokens cache_share
 *   measured computed datasheet flop_per_byte · one_sequence many_sequences {n} */

const CONTEXTS = [0, 16, 64, 256, 1024, 2048, 4096, 8192];

/** A slider's stops: n steps of `at` (0…1), each whole number once, so that every key press changes something. */
function stopsOf(n, at) { return [...new Set(Array.from({ length: n + 1 }, (_, i) => Math.round(at(i / n))))]; }
const STOPS = {
  batch: stopsOf(256, (f) => 512 ** f),
  context: stopsOf(128, (f) => { const x = f * (CONTEXTS.length - 1), i = Math.min(CONTEXTS.length - 2, Math.floor(x)); return CONTEXTS[i] + (x - i) * (CONTEXTS[i + 1] - CONTEXTS[i]); }),
};
/** The position of a value on its slider; of one that a link brought and that is no stop, the last one below it. */
function positionOf(name, value) { return STOPS[name].findLastIndex((stop) => stop <= value); }

/** FLOPs and bytes of one pass of `batch` sequences with `n` new tokens each on top of `cached`. */
function passOf(model, weights, batch, n, cached) {
  const pairs = (n * (n + 1)) / 2 + n * cached;
  const flops = batch * (model.linear * n + model.pair * pairs + model.vocabulary);
  const cache = batch * (cached + n) * model.values * weights.cache, bytes = model.weights * weights.bytes + cache;
  return { flops, bytes, cache, intensity: flops / bytes };
}

function secondsOf(pass, device) { return Math.max(pass.flops / device.flops, pass.bytes / device.read); }

/** The smallest batch that arithmetic limits; null if there is none below 100,000 (each sequence brings its own cache). */
function crossingBatch(model, weights, device, cached) {
  const bound = (batch) => { const p = passOf(model, weights, batch, 1, cached); return p.flops / device.flops >= p.bytes / device.read; };
  let low = 1, high = 100000;
  if (!bound(high)) return null;
  while (low < high) { const mid = Math.floor((low + high) / 2); bound(mid) ? (high = mid) : (low = mid + 1); }
  return low;
}

function buildLab(root) {
  const q = (selector) => root.querySelector(selector);
  const s = { root, canvas: q("canvas"), legend: q(".legend"), sentence: q(".say"), figs: q(".figs"), source: q(".source"), colours: null,
    device: q(".device"), weights: q(".weights"), batch: q(".batch input"), context: q(".context input"), link: new Agreement() };
  s.tip = tooltip(root);
  s.say = announcer(root);
  const change = (values, commit) => {
    Object.assign(s.controls, values);
    drawLab(s);
    if (commit) { s.send("controls", s.link.number(s.controls)); s.say(s.sentence.textContent); }
  };
  for (const name of ["batch", "context"]) {
    const input = s[name], value = () => ({ [name]: STOPS[name][+input.value] });
    input.max = STOPS[name].length - 1;
    input.oninput = () => change(value(), false); input.onchange = () => change(value(), true);
  }
  for (const name of ["device", "weights"]) s[name].onchange = () => change({ [name]: s[name].value }, true);
  s.canvas.onpointermove = (event) => {
    const near = (s.marks || []).map((m) => ({ ...m, d: Math.hypot(m.x - event.offsetX, m.y - event.offsetY) })).sort((a, b) => a.d - b.d)[0];
    if (near && near.d < 24) s.tip.show(s.canvas.offsetLeft + near.x, s.canvas.offsetTop + near.y, near.label); else s.tip.hide();
  };
  s.canvas.onpointerleave = () => s.tip.hide();
  watch(root, () => { s.colours = null; if (s.data) drawLab(s); });
  return s;
}

const rate = (s, x) => { const [power, unit] = x >= 1e12 ? [1e12, "TFLOP/s"] : [1e9, "GFLOP/s"]; const v = x / power; return s.f.number(v, v >= 99.95 ? 0 : v >= 9.995 ? 1 : 2) + "\u00a0" + unit; };

function current(s) {
  const device = s.data.devices.find((d) => d.id === s.controls.device) || s.data.devices[0];
  const weights = s.data.weights.find((w) => w.id === s.controls.weights) || s.data.weights[0];
  return { device, weights, here: device === s.data.devices[0] };
}

function drawLab(s) {
  const { device, weights, here } = current(s), { batch, context } = s.controls, { model } = s.data, f = s.f, text = s.text;
  const decode = passOf(model, weights, batch, 1, context), prefill = passOf(model, weights, 1, Math.max(1, context), 0);
  s.root.querySelector(".batch output").textContent = f.int(batch);
  s.root.querySelector(".context output").textContent = f.int(context);
  s.batch.setAttribute("aria-valuetext", f.int(batch)); s.context.setAttribute("aria-valuetext", f.int(context));
  const seconds = secondsOf(decode, device), arithmetic = decode.flops / device.flops, memoryBound = arithmetic < decode.bytes / device.read;
  const crossing = crossingBatch(model, weights, device, context);
  const sequences = batch === 1 ? text.one_sequence : t(text.many_sequences, { n: f.int(batch) });
  s.sentence.textContent = t(memoryBound ? text.say_memory : text.say_compute, { batch: sequences, share: f.percent(arithmetic / seconds), wait: f.percent(1 - arithmetic / seconds) }) + " " +
    (crossing === null ? text.crossing_never : t(text.crossing, { n: f.int(crossing) }));
  const values = [["intensity", f.number(decode.intensity, 2)], ["time", f.ms(seconds * 1000)], ["all_tokens", f.int(batch / seconds)], ["one_tokens", f.int(1 / seconds)], ["cache_share", f.percent(decode.cache / decode.bytes)]];
  s.figs.replaceChildren(...values.map(([name, value]) => h("div", { class: "fig", dataset: { name } }, h("b", {}, value), h("span", {}, text[name], h("em", { class: "kind" }, text.computed)))));
  s.source.textContent = device.source;
  drawPlot(s, device, here, decode, prefill);
}

function drawPlot(s, device, here, decode, prefill) {
  const { ctx, w, h: tall } = fitCanvas(s.canvas), c = (s.colours ||= palette(s.root)), unit = rem(), f = s.f;
  if (!w) return;
  const left = 3.75 * unit, right = w - 0.5 * unit, top = 1 * unit, base = tall - 2.75 * unit;
  const xs = [0.1, 3000], roof = (x) => Math.min(device.flops, x * device.read), high = device.flops * 5, low = Math.min(roof(0.1), ...(here ? s.data.points.map((p) => p.flops / p.seconds) : [])) * 0.6;
  const sx = (x) => left + ((Math.log(x) - Math.log(xs[0])) / (Math.log(xs[1]) - Math.log(xs[0]))) * (right - left);
  const sy = (y) => base - ((Math.log(y) - Math.log(low)) / (Math.log(high) - Math.log(low))) * (base - top);
  ctx.font = `${0.75 * unit}px ${c.sans}`;
  ctx.lineWidth = 1;
  for (let p = -1; p <= 3; p++) { const x = 10 ** p; ctx.fillStyle = c.line; ctx.fillRect(sx(x), top, 1, base - top); ctx.fillStyle = c.muted; const label = x < 1 ? f.number(x, 1) : f.int(x); ctx.fillText(label, sx(x) - ctx.measureText(label).width / 2, base + 1.125 * unit); }
  for (let p = Math.ceil(Math.log10(low)); p <= Math.log10(high); p++) {
    const y = 10 ** p; ctx.fillStyle = c.line; ctx.fillRect(left, sy(y), right - left, 1); ctx.fillStyle = c.muted;
    const label = y >= 1e12 ? f.int(y / 1e12) + " T" : y >= 1e9 ? f.int(y / 1e9) + " G" : f.int(y / 1e6) + " M"; ctx.fillText(label, left - ctx.measureText(label).width - 0.375 * unit, sy(y) + 0.25 * unit);
  }
  ctx.fillStyle = c.muted;
  ctx.fillText(s.text.x, (left + right - ctx.measureText(s.text.x).width) / 2, tall - 0.5 * unit);
  ctx.save(); ctx.translate(0.75 * unit, (top + base + ctx.measureText(s.text.y).width) / 2); ctx.rotate(-Math.PI / 2); ctx.fillText(s.text.y, 0, 0); ctx.restore();
  // the two sides of the ridge
  const ridge = device.flops / device.read, rx = Math.max(left, Math.min(right, sx(ridge)));
  ctx.globalAlpha = 0.5; ctx.fillStyle = c["decode-soft"]; ctx.fillRect(left, top, rx - left, base - top); ctx.fillStyle = c["prefill-soft"]; ctx.fillRect(rx, top, right - rx, base - top); ctx.globalAlpha = 1;
  ctx.fillStyle = c["decode-ink"]; ctx.fillText(s.text.memory_side, left + 0.5 * unit, top + unit);
  ctx.fillStyle = c["prefill-ink"]; const wide = ctx.measureText(s.text.compute_side).width; if (right - rx > wide + unit) ctx.fillText(s.text.compute_side, right - wide - 0.5 * unit, top + unit);
  ctx.strokeStyle = c.ink; ctx.lineWidth = 2.5; ctx.beginPath(); ctx.moveTo(sx(xs[0]), sy(roof(xs[0]))); ctx.lineTo(sx(ridge), sy(device.flops)); ctx.lineTo(right, sy(device.flops)); ctx.stroke();
  ctx.fillStyle = c.ink;
  const summit = t(s.text.ridge, { n: f.number(ridge, 1) });
  ctx.fillText(summit, Math.max(left, Math.min(right - ctx.measureText(summit).width, sx(ridge))), sy(device.flops) - 0.75 * unit);
  s.marks = [];
  const mark = (x, y, colour, shape, label, words) => {
    const px = Math.max(left, Math.min(right, sx(x))), py = Math.max(top, Math.min(base, sy(y))), r = 0.34 * unit;
    ctx.fillStyle = colour; ctx.strokeStyle = c.card; ctx.lineWidth = 1.5; ctx.beginPath();
    if (shape === "square") ctx.rect(px - r, py - r, 2 * r, 2 * r); else if (shape === "diamond") { ctx.moveTo(px, py - 1.6 * r); ctx.lineTo(px + 1.6 * r, py); ctx.lineTo(px, py + 1.6 * r); ctx.lineTo(px - 1.6 * r, py); ctx.closePath(); } else ctx.arc(px, py, r, 0, 7);
    ctx.fill(); ctx.stroke();
    s.marks.push({ x: px, y: py, label, words });
  };
  if (here) for (const p of s.data.points) {
    const words = p.kind === "decode" ? `${s.text.decode} × ${p.n_sequences}` : `${s.text.prefill} ${p.n_tokens}`;
    mark(p.flops / p.bytes, p.flops / p.seconds, p.kind === "decode" ? c.decode : c.prefill, p.kind === "decode" ? "circle" : "square", `${words}: ${f.ms(p.seconds * 1000)}, ${rate(s, p.flops / p.seconds)}`, String(p.kind === "decode" ? p.n_sequences : p.n_tokens));
  }
  nameMarks(ctx, c, s.marks, right, unit);
  for (const [pass, name] of [[prefill, "computed_prefill"], [decode, "computed_decode"]]) {
    const y = pass.flops / secondsOf(pass, device), colour = name === "computed_decode" ? c.new : c.cache;
    if (pass === prefill && s.controls.context < 1) continue;
    ctx.strokeStyle = colour; ctx.lineWidth = 1; ctx.setLineDash([4, 4]); ctx.beginPath(); ctx.moveTo(sx(pass.intensity), base); ctx.lineTo(sx(pass.intensity), sy(y)); ctx.stroke(); ctx.setLineDash([]);
    mark(pass.intensity, y, colour, "diamond", `${s.text[name]}: ${f.ms(secondsOf(pass, device) * 1000)}, ${rate(s, y)}`);
  }
  s.canvas.setAttribute("aria-label", `${s.text.aria} ${device.name}. ${s.sentence.textContent}`);
}

/** Short names of the measured passes: below to the right of the mark, else beside it. Where no place is free the tip has it. */
function nameMarks(ctx, c, marks, right, unit) {
  const taken = marks.map((m) => [m.x - 0.375 * unit, m.y - 0.375 * unit, m.x + 0.375 * unit, m.y + 0.375 * unit]);
  ctx.fillStyle = c.ink;
  for (const { x, y, words } of marks) {
    const wide = ctx.measureText(words).width;
    for (const [left, base] of [[x + 0.5 * unit, y + 1.125 * unit], [x + 0.625 * unit, y + 0.25 * unit], [x - 0.5 * unit - wide, y - 0.5 * unit]]) {
      const box = [left, base - 0.625 * unit, left + wide, base];
      if (box[2] > right || taken.some((b) => box[0] < b[2] && b[0] < box[2] && box[1] < b[3] && b[1] < box[3])) continue;
      ctx.fillText(words, left, base);
      taken.push(box);
      break;
    }
  }
}

export default function (component) {
  const { data, parentElement, setStateValue } = opened(component), s = instance(parentElement, buildLab), text = data.text;
  s.data = data; s.text = text; s.f = formats(data.lang); s.send = setStateValue;
  s.root.setAttribute("aria-label", text.aria);
  const option = (value, label) => h("option", { value }, label);
  s.device.replaceChildren(...data.devices.map((d) => option(d.id, d.name)));
  s.weights.replaceChildren(...data.weights.map((x) => option(x.id, x.name)));
  s.root.querySelectorAll(".pick b").forEach((b, i) => { b.textContent = [text.device, text.weights][i]; });
  s.root.querySelector(".batch span").textContent = text.batch; s.root.querySelector(".context span").textContent = text.context;
  if (s.link.isNews(data.controls, data.seq)) s.controls = { ...data.controls };
  s.device.value = s.controls.device; s.weights.value = s.controls.weights;
  s.batch.value = positionOf("batch", s.controls.batch); s.context.value = positionOf("context", s.controls.context);
  const swatch = (css, label, kind) => h("span", {}, h("i", { style: css }), label, h("em", { class: "kind" }, kind));
  s.legend.replaceChildren(
    swatch({ background: "var(--decode)", borderRadius: "50%" }, text.decode, text.measured), swatch({ background: "var(--prefill)" }, text.prefill, text.measured),
    swatch({ background: "var(--new)", transform: "rotate(45deg)" }, text.computed_decode, text.computed), swatch({ background: "var(--cache)", transform: "rotate(45deg)" }, text.computed_prefill, text.computed));
  drawLab(s);
}
