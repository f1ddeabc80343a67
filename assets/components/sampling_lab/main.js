/* The sampling lab: all scores of one pass, five sliders, and one throw of the dice.
 *
 * DATA (built by pages/views/sampling_lab.py)
 * {
 *   logits_key,                     which array of the logits_store mount this is about
 *   n_vocab, dice_step,             dice_step: the step number that keys the dice, as in core.sampling.uniform(seed, step)
 *   settings: {temperature, top_k, top_p, min_p, repetition_penalty, seed},
 *   seq,                            see Agreement in shared.js
 *   previous: [id…],                tokens read and written before, for the repetition penalty
 *   names: [[id, text, hex]…],      texts of the likeliest ids and of `previous`; others are asked for by id
 *   answer: [{text, hex, bits, step}],  the run's choices: token, doubt (bits at temperature 1), pass number (1 = first)
 *   step,                           the pass shown
 *   context,                        the end of the text before this choice
 *   chosen,                         the id that the run chose here (null while unknown)
 *   presets: [[name, settings]…],   names are keys of text.preset_<name>
 *   lang, text: {…}                 the strings of TEXT below
 * }
 * Sends setStateValue: settings {…, seq} when a control is let go · step n when a token of the strip is chosen ·
 * names [id…] when a token is drawn whose text is not here.
 *
 * TEXT  aria strip strip_token {i} {text} {bits} after {context} n {n} · token logit scaled kept probability · cut_temperature cut_top_k
 *   cut_top_p cut_min_p · more {n} · cut {n} {rule} · repetition_penalty temperature top_k top_p min_p · off greedy · dice {seed} {step} {u}
 *   dice_aria {u} {token} {p} · chosen · base · drawn · roll first_seed · survivors excluded bits · draw {n} clear drawn_total {n} {error}
 *   presets preset_<name> use same_dice survivors_short {n} bits_short {bits} · measured computed · waiting · others
 */

/* ---- sampling maths: begin (held equal to core/sampling.py by tests/browser/test_sampling_browser.py) ---- */

/** All ids, highest score first; of equal scores the lower id first. logits: Float32Array. */
function likeliestFirst(logits) {
  return Uint32Array.from(logits.keys()).sort((a, b) => logits[b] - logits[a] || a - b);
}

/** Order and scores after the repetition penalty: {order: Uint32Array, scores: Float64Array in that order}. */
function penalised(logits, order, previous, penalty) {
  const ids = penalty === 1 ? new Set() : new Set(previous.filter((id) => id >= 0 && id < logits.length));
  const moved = [...ids].map((id) => [logits[id] < 0 ? logits[id] * penalty : logits[id] / penalty, id]);
  moved.sort((a, b) => b[0] - a[0] || a[1] - b[1]);
  const newOrder = new Uint32Array(order.length), scores = new Float64Array(order.length);
  let next = 0, at = 0; // the penalised few are merged back into the long sorted rest
  for (const id of order) {
    if (ids.has(id)) continue;
    const score = logits[id];
    while (next < moved.length && (moved[next][0] > score || (moved[next][0] === score && moved[next][1] < id))) {
      newOrder[at] = moved[next][1]; scores[at++] = moved[next++][0];
    }
    newOrder[at] = id; scores[at++] = score;
  }
  for (; next < moved.length; next++) { newOrder[at] = moved[next][1]; scores[at++] = moved[next][0]; }
  return { order: newOrder, scores };
}

/** The whole chain over sorted scores. Every rule keeps a stretch from the left, so a cut is one number: how many stay.
 *  Returns {n, kept: {temperature, top_k, top_p, min_p}, cumulative, mass, total, excluded: {…}, entropy, survivors, scale, best}.
 *  p of place i (i < n) is weights[i] / mass. `room` {weights, cumulative} is reused between calls. */
function sample(scores, params, room) {
  const size = scores.length, { weights, cumulative } = room, greedy = params.temperature === 0;
  const scale = greedy ? 1 : params.temperature, best = scores[0] / scale;
  let total = 0;
  for (let i = 0; i < size; i++) {
    total += weights[i] = Math.exp(scores[i] / scale - best);
    cumulative[i] = total;
  }
  const kept = { temperature: greedy ? 1 : size };
  let n = kept.temperature;
  if (params.top_k > 0 && params.top_k < n) {
    const last = scores[params.top_k - 1] / scale;
    n = params.top_k;
    while (n < size && scores[n] / scale === last) n++; // equals of the k-th stay
  }
  kept.top_k = n;
  if (params.top_p < 1) n = Math.min(n, firstAtLeast(cumulative, n, params.top_p * cumulative[n - 1]) + 1);
  kept.top_p = n;
  while (n > 1 && weights[n - 1] < params.min_p) n--;
  kept.min_p = n;
  const mass = cumulative[n - 1];
  let survivors = n, doubt = 0;
  while (weights[survivors - 1] / mass === 0) survivors--;
  for (let i = 1; i < survivors; i++) doubt += weights[i] * (best - scores[i] / scale);
  const excluded = {}, stages = ["temperature", "top_k", "top_p", "min_p"];
  stages.forEach((name, i) => { excluded[name] = ((i ? cumulative[kept[stages[i - 1]] - 1] : total) - cumulative[kept[name] - 1]) / total; });
  return { n, kept, weights, cumulative, mass, total, excluded, survivors, scale, best, entropy: survivors > 1 ? Math.log2(mass) + doubt / mass / Math.LN2 : 0 };
}

/** First place among n whose right edge is at least `line`. */
function firstAtLeast(cumulative, n, line) {
  let low = 0, high = n - 1;
  while (low < high) { const middle = (low + high) >> 1; if (cumulative[middle] >= line) high = middle; else low = middle + 1; }
  return low;
}

/** The place under u (0 ≤ u < 1) on the bar of the n survivors. */
function placeUnder(result, u) {
  const target = u * result.mass, { cumulative } = result;
  // Rounding can make u × mass equal to the mass: then it is the last token that has a width.
  let low = 0, high = firstAtLeast(cumulative, result.survivors, result.mass);
  while (low < high) { const middle = (low + high) >> 1; if (cumulative[middle] > target) high = middle; else low = middle + 1; }
  return low;
}

/** How many of the throws (sorted) lie on which place: Map place -> times, in the order of the bar.
 *  It leaps from one token's edge to the next, so that 10,000 throws do not cost 10,000 searches. */
function counted(throws, result) {
  const counts = new Map(), last = firstAtLeast(result.cumulative, result.survivors, result.mass);
  for (let i = 0; i < throws.length;) {
    const place = placeUnder(result, throws[i]), edge = result.cumulative[place];
    let low = i + 1, high = throws.length;
    if (place < last) while (low < high) { const middle = (low + high) >> 1; if (throws[middle] * result.mass >= edge) high = middle; else low = middle + 1; }
    const next = place < last ? low : throws.length;
    counts.set(place, next - i);
    i = next;
  }
  return counts;
}

const PHILOX = { M: [[0xd2e7470e, 0xe14c6c93], [0xca5a8263, 0x95121157]], W: [[0x9e3779b9, 0x7f4a7c15], [0xbb67ae85, 0x84caa73b]] };
/** The dice: the same number as core.sampling.uniform(seed, step), bit by bit (Philox4x64-10, in 32-bit halves). */
function uniform(seed, step) {
  let k = [0, seed >>> 0, 0, step >>> 0], c = [0, 1, 0, 0, 0, 0, 0, 0]; // pairs: high, low
  for (let round = 0; round < 10; round++) {
    if (round) k = [...add64(k[0], k[1], PHILOX.W[0]), ...add64(k[2], k[3], PHILOX.W[1])];
    const a = multiply64(PHILOX.M[0], c[0], c[1]), b = multiply64(PHILOX.M[1], c[4], c[5]);
    c = [b[0] ^ c[2] ^ k[0], b[1] ^ c[3] ^ k[1], b[2], b[3], a[0] ^ c[6] ^ k[2], a[1] ^ c[7] ^ k[3], a[2], a[3]];
  }
  return ((c[0] >>> 0) * 2 ** 21 + (c[1] >>> 11)) * 2 ** -53;
}
function add64(high, low, other) {
  const sum = (low >>> 0) + other[1];
  return [((high >>> 0) + other[0] + (sum >= 2 ** 32 ? 1 : 0)) >>> 0, sum >>> 0];
}
function high32(a, b) {
  const al = a & 0xffff, ah = a >>> 16, bl = b & 0xffff, bh = b >>> 16, lh = al * bh, hl = ah * bl;
  return ah * bh + (lh >>> 16) + (hl >>> 16) + ((((al * bl) >>> 16) + (lh & 0xffff) + (hl & 0xffff)) >>> 16);
}
function multiply64([a1, a0], high, low) {
  const b1 = high >>> 0, b0 = low >>> 0, low32 = (x, y) => Math.imul(x, y) >>> 0;
  const s1 = high32(a0, b0) + low32(a0, b1) + low32(a1, b0);
  const s2 = high32(a0, b1) + high32(a1, b0) + low32(a1, b1) + Math.floor(s1 / 2 ** 32);
  return [(high32(a1, b1) + Math.floor(s2 / 2 ** 32)) >>> 0, s2 >>> 0, s1 >>> 0, low32(a0, b0)]; // high to low
}

/* ---- sampling maths: end ---- */

const RULES = ["repetition_penalty", "temperature", "top_k", "top_p", "min_p"];
const CUTS = ["temperature", "top_k", "top_p", "min_p"];
const DRAWS = [1, 100, 10000];
const range = (from, to, step) => Array.from({ length: Math.round((to - from) / step) + 1 }, (_, i) => +(from + i * step).toFixed(6));
/** What a slider can be set to. The neutral value ("off") is marked; uneven steps give small values their room. */
const STOPS = {
  repetition_penalty: { values: range(1, 2, 0.01), off: 1, digits: 2 },
  temperature: { values: range(0, 2, 0.01), digits: 2 },
  top_k: { values: [0, ...range(1, 10, 1), 12, 15, 20, 25, 30, 40, 50, 75, 100, 150, 200, 300, 500, 750, 1000], off: 0, digits: 0 },
  top_p: { values: range(0.01, 1, 0.01), off: 1, digits: 2 },
  min_p: { values: [0, 0.001, 0.002, 0.005, ...range(0.01, 0.1, 0.005), ...range(0.12, 0.3, 0.02), ...range(0.35, 0.95, 0.05), 0.99], off: 0, digits: 3 },
};
const nearest = (values, wanted) => values.reduce((best, value, i) => (Math.abs(value - wanted) < Math.abs(values[best] - wanted) ? i : best), 0);
const narrow = (root) => root.clientWidth < 560;

function build(root) {
  const lab = { root, data: null, text: {}, logits: null, key: "", link: new Agreement(), asked: new Set(),  sortedThrows: null, thrown: 0, room: null };
  lab.strip = h("div", { class: "strip", role: "radiogroup" });
  lab.after = h("p", { class: "after" });
  lab.head = h("div", { class: "line head" }, ...["token", "logit", "scaled", "kept", "probability"].map((name) => h("span", { class: name })), h("span"));
  lab.rows = h("div", { class: "lines" });
  lab.axis = h("div", { class: "line axis" }, ...["code", "logit", "scaled", "kept"].map((name) => h("span", { class: name })), h("div", { class: "ticks note" }), h("span"));
  lab.legend = h("div", { class: "legend" });
  lab.controls = h("div", { class: "controls" });
  lab.sliders = Object.fromEntries(RULES.map((name, i) => [name, slider(lab, name, i + 1)]));
  lab.dice = h("canvas", { class: "dice", role: "img" });
  lab.diceLine = h("p", { class: "dice-line" });
  lab.roll = h("button", { class: "btn", type: "button", onclick: () => reseed(lab, lab.params.seed + 1) });
  lab.first = h("button", { class: "btn", type: "button", onclick: () => reseed(lab, 0) });
  lab.figs = h("div", { class: "figs" });
  lab.drawLabel = h("span", { class: "draw-label" });
  lab.drawButtons = DRAWS.map((n) => h("button", { class: "btn", type: "button", onclick: () => draw(lab, n) }));
  lab.clear = h("button", { class: "btn", type: "button", onclick: () => clearDraws(lab) });
  lab.drawn = h("p", { class: "note drawn", role: "status" });
  lab.presetTitle = h("h2", { class: "h3" });
  lab.presetNote = h("p", { class: "note" });
  lab.presets = h("div", { class: "presets" });
  lab.wait = h("p", { class: "note waiting", role: "status" });
  root.append(
    h("section", { class: "card" }, lab.strip, lab.after, lab.wait,
      h("div", { class: "two" },
        h("div", { class: "left" }, lab.head, lab.rows, lab.axis, lab.legend),
        h("div", { class: "right" }, lab.controls, lab.figs,
          lab.dice, lab.diceLine, h("div", { class: "bar" }, lab.roll, lab.first),
          h("div", { class: "bar draws" }, lab.drawLabel, ...lab.drawButtons, lab.clear), lab.drawn))),
    h("section", { class: "card preset-card" }, lab.presetTitle, lab.presetNote, lab.presets));
  lab.controls.append(...RULES.map((name) => lab.sliders[name].row));
  lab.request = once(() => { recompute(lab); for (const name of RULES) showValue(lab, name); });
  lab.say = announcer(root);
  lab.colours = null;
  watch(root, () => { lab.colours = null; if (lab.result) paint(lab); });
  const arrived = (event) => { if (event.detail === lab.data?.logits_key) takeLogits(lab); };
  listen(root, "otat-logits", arrived);
  bindStrip(lab);
  return lab;
}

/** One slider with its number in the order of the rules, and its value. */
function slider(lab, name, number) {
  const input = h("input", { type: "range", min: 0, max: STOPS[name].values.length - 1, step: 1, id: "s-" + name });
  const label = h("label", { for: "s-" + name }), value = h("output", { for: "s-" + name });
  input.oninput = () => { lab.params[name] = STOPS[name].values[+input.value]; lab.request(); };
  input.onchange = () => commit(lab);
  return { row: h("div", { class: "ctl" }, h("span", { class: "order", "aria-hidden": "true" }, String(number)), label, input, value), input, label, value };
}

function showValue(lab, name) {
  const { value, input } = lab.sliders[name], amount = lab.params[name], { off, digits } = STOPS[name];
  const words = amount === off ? lab.text.off : name === "temperature" && amount === 0 ? lab.text.greedy : lab.f.number(amount, amount * 100 % 1 && name === "min_p" ? 3 : Math.min(digits, 2));
  if (value.textContent === words) return;
  value.textContent = words;
  input.setAttribute("aria-valuetext", words);
}

/** Tell Python (and so the URL) once the learner has let go; keys held down count as one. */
function commit(lab) {
  clearTimeout(lab.timer);
  lab.timer = setTimeout(() => {
    lab.send("settings", lab.link.number(lab.params));
    const { n, entropy } = lab.result ?? { n: 0, entropy: 0 };
    lab.say(`${t(lab.text.survivors_short, { n: lab.f.int(n) })}, ${t(lab.text.bits_short, { bits: lab.f.bits(entropy) })}`);
  }, 250);
}

function reseed(lab, seed) {
  lab.params.seed = seed % 2 ** 31;
  forget(lab);
  recompute(lab);
  commit(lab);
}

/* ---- data ---- */

function update(lab, component) {
  const { data } = opened(component);
  lab.send = component.setStateValue;
  lab.data = data; lab.text = data.text; lab.f = formats(data.lang);
  lab.names = new Map(data.names.map(([id, text, hex]) => [id, { text, hex }]));
  if (lab.link.isNews(data.settings, data.seq)) { lab.params = { ...data.settings }; forget(lab); }
  writeText(lab);
  drawStrip(lab);
  takeLogits(lab);
}

function takeLogits(lab) {
  const key = lab.data.logits_key, found = globalThis.otatLogits?.get(key);
  lab.root.classList.toggle("stale", !found);
  lab.wait.hidden = Boolean(found);
  if (!found) { lab.wait.textContent = lab.text.waiting; return; }
  if (key !== lab.key) {
    lab.key = key; lab.logits = found; lab.order = likeliestFirst(found);
    lab.room = { weights: new Float64Array(found.length), cumulative: new Float64Array(found.length) };
    forget(lab);
    const raw = penalised(found, lab.order, [], 1);
    const plain = sample(raw.scores, { temperature: 1, top_k: 0, top_p: 1, min_p: 0 }, { weights: new Float64Array(found.length), cumulative: new Float64Array(found.length) });
    lab.base = (id) => Math.exp(found[id] - plain.best) / plain.total;
    lab.baseEntropy = plain.entropy;
    lab.sorted = null;
  }
  recompute(lab);
  drawPresets(lab);
}

/** Everything from the logits on, over the whole vocabulary: about a millisecond. */
function recompute(lab) {
  if (!lab.logits) return;
  const p = lab.params, penalty = `${p.repetition_penalty}:${lab.data.previous.length}`;
  if (!lab.sorted || lab.sortedFor !== penalty) { lab.sorted = penalised(lab.logits, lab.order, lab.data.previous, p.repetition_penalty); lab.sortedFor = penalty; }
  lab.result = sample(lab.sorted.scores, p, lab.room);
  lab.u = uniform(p.seed + Math.max(0, lab.thrown - 1), lab.data.dice_step);
  lab.place = placeUnder(lab.result, lab.u);
  count(lab);
  paint(lab);
}

/* ---- the dice ---- */

/** Draw n times more: draw number j is what Python draws with seed + j, so the counts can be checked anywhere. */
function draw(lab, n) {
  const { seed } = lab.params, throws = new Float64Array(lab.thrown + n);
  if (lab.thrown) throws.set(lab.sortedThrows);
  for (let j = lab.thrown; j < throws.length; j++) throws[j] = uniform(seed + j, lab.data.dice_step);
  lab.sortedThrows = throws.sort(); lab.thrown = throws.length;
  recompute(lab);
  drawPresets(lab);
}

function clearDraws(lab) {
  forget(lab);
  recompute(lab);
  drawPresets(lab);
}

function forget(lab) { lab.sortedThrows = null; lab.thrown = 0; }

/** The same throws under the bars of the moment: while a slider moves, the tokens move under the dice. */
function count(lab) { lab.counts = lab.thrown ? counted(lab.sortedThrows, lab.result) : null; }

/* ---- painting ---- */

function label(lab, id) {
  const token = lab.names.get(id);
  if (token) return showToken(token.text, token.hex);
  if (!lab.asked.has(id)) { lab.asked.add(id); clearTimeout(lab.asking); lab.asking = setTimeout(() => lab.send("names", [...lab.asked].slice(-60)), 150); }
  return "#" + id;
}

function cutBy(result, place) { return CUTS.find((name) => place >= result.kept[name]); }

function paint(lab) {
  const { result, f, text } = lab, shown = narrow(lab.root) ? 10 : 14;
  const longest = Math.max(result.weights[0] / result.mass, lab.thrown ? (lab.counts.get(0) ?? 0) / lab.thrown : 0);
  const axis = [0.1, 0.25, 0.5, 1].find((limit) => limit >= longest - 1e-12) ?? 1;
  paintDice(lab); // first: it asks for sizes, which is cheap only before anything was changed
  makeRows(lab, shown);
  for (let place = 0; place < shown; place++) paintRow(lab, lab.rows.children[place], place, axis);
  let place = shown, rest = 0;
  for (; place < result.n; place++) rest += result.weights[place];
  paintBuckets(lab, shown, rest / result.mass, axis);
  paintAxis(lab, axis);
  paintFigures(lab);
}

function paintAxis(lab, axis) {
  if (lab.axisKey === axis + lab.data.lang) return;
  lab.axisKey = axis + lab.data.lang;
  const round = (x) => lab.f.int(x * 100) + "\u00a0%";
  lab.axis.querySelector(".ticks").replaceChildren(...[0, axis / 2, axis].map((x) => h("span", {}, round(x))));
}

function makeRows(lab, shown) {
  if (lab.rows.children.length === shown + 1 + CUTS.length) return;
  lab.rows.replaceChildren(...Array.from({ length: shown + 1 + CUTS.length }, (_, i) =>
    h("div", { class: i < shown ? "line" : i === shown ? "line more" : "line bucket" }, h("code"), h("span", { class: "logit" }), h("span", { class: "scaled" }), h("span", { class: "kept" }),
      h("div", { class: "track" }, h("u"), h("s"), h("i")), h("span", { class: "p" }))));
}

function set(node, text) { if (node.textContent !== text) node.textContent = text; }

function paintRow(lab, row, place, axis) {
  const { result, f } = lab, id = lab.sorted.order[place], cut = cutBy(result, place), [code, logit, scaled, kept, track, p] = row.children;
  const share = cut ? 0 : result.weights[place] / result.mass, times = lab.counts?.get(place) ?? 0;
  row.classList.toggle("out", Boolean(cut));
  row.classList.toggle("picked", place === lab.place);
  row.classList.toggle("run", id === lab.data.chosen);
  set(code, label(lab, id));
  set(logit, f.number(lab.logits[id], 1));
  set(scaled, lab.params.temperature === 0 ? "–" : f.number(lab.sorted.scores[place] / result.scale, 1));
  set(kept, cut ? "✗" : "✓");
  set(p, cut ? lab.text["cut_" + cut] : f.percent(share));
  paintTrack(track, share, lab.base(id), lab.thrown && !cut ? times / lab.thrown : null, axis);
}

function paintTrack(track, share, before, drawn, axis) {
  const [bar, ghost, mark] = track.children;
  bar.style.transform = `scaleX(${Math.min(1, share / axis)})`;
  ghost.hidden = before === null;
  if (before !== null) ghost.style.left = `${Math.min(100, (before / axis) * 100)}%`;
  mark.hidden = drawn === null;
  if (drawn !== null) mark.style.left = `${Math.min(100, (drawn / axis) * 100)}%`;
}

/** What the rows do not show: the many small ones that are still possible, and what each rule took away. */
function paintBuckets(lab, shown, rest, axis) {
  const { result, f, text } = lab, rows = [...lab.rows.children].slice(shown), nMore = Math.max(0, result.n - shown);
  let drawn = 0;
  if (lab.counts) for (const [place, times] of lab.counts) if (place >= shown) drawn += times;
  const [more, ...cuts] = rows;
  more.classList.toggle("empty", nMore === 0);
  set(more.children[0], t(text.more, { n: f.int(nMore) }));
  set(more.children[3], nMore ? "✓" : "");
  set(more.children[5], nMore ? f.percent(rest) : "–");
  paintTrack(more.children[4], rest, null, lab.thrown && nMore ? drawn / lab.thrown : null, axis);
  cuts.forEach((row, i) => {
    const name = CUTS[i], before = i ? result.kept[CUTS[i - 1]] : lab.logits.length, n = before - result.kept[name];
    row.hidden = name === "temperature" ? n === 0 : false;
    row.classList.toggle("empty", n === 0);
    set(row.children[0], t(text.cut, { n: f.int(n), rule: text["cut_" + name] }));
    set(row.children[3], n ? "✗" : "");
    set(row.children[5], n ? f.percent(result.excluded[name]) : "–");
    paintTrack(row.children[4], result.excluded[name], null, null, 1);
  });
}

function paintFigures(lab) {
  const { result, f, text } = lab, lost = CUTS.reduce((sum, name) => sum + result.excluded[name], 0);
  const cells = [[f.int(result.survivors), text.survivors], [f.percent(lost), text.excluded], [f.bits(result.entropy), text.bits]];
  if (lab.figs.children.length !== 3) lab.figs.replaceChildren(...cells.map(() => h("div", { class: "fig" }, h("b"), h("span", {}, h("span"), h("em", { class: "kind" })))));
  cells.forEach(([value, name], i) => {
    const [b, span] = lab.figs.children[i].children;
    set(b, value); set(span.children[0], name); set(span.children[1], text.computed);
  });
}

function paintDice(lab) {
  const { result, f, text, u } = lab, { ctx, w, h: height } = fitCanvas(lab.dice);
  const c = (lab.colours ??= { ...palette(lab.root), rem: rem() }), size = 0.8125 * c.rem, barTop = 0.55 * c.rem, barHeight = height - barTop - 0.25 * c.rem;
  ctx.font = `${size}px ${c.mono}`;
  ctx.textAlign = "center"; ctx.textBaseline = "middle";
  let left = 0;
  for (let place = 0; place < result.survivors; place++) {
    const right = (result.cumulative[place] / result.mass) * w, picked = place === lab.place;
    if (right - left < 0.5 && !picked) { // the rest is finer than a pixel
      ctx.fillStyle = c.line; ctx.fillRect(left, barTop, w - left, barHeight);
      break;
    }
    ctx.fillStyle = picked ? c["new-soft"] : place % 2 ? c["decode-soft"] : c.decode;
    ctx.globalAlpha = picked || place % 2 ? 1 : 0.42;
    ctx.fillRect(left, barTop, Math.max(0.5, right - left - (right - left > 3 ? 1 : 0)), barHeight);
    ctx.globalAlpha = 1;
    if (!picked && right - left > size * 1.6) diceLabel(lab, ctx, c, place, left, right, barTop + barHeight / 2);
    left = right;
  }
  const from = lab.place ? (result.cumulative[lab.place - 1] / result.mass) * w : 0, to = (result.cumulative[lab.place] / result.mass) * w;
  if (to < w || from > 0) { ctx.fillStyle = c["new-soft"]; ctx.fillRect(from, barTop, Math.max(1, to - from - 1), barHeight); }
  diceLabel(lab, ctx, c, lab.place, from, to, barTop + barHeight / 2);
  ctx.strokeStyle = c.new; ctx.lineWidth = 2; ctx.setLineDash([4, 3]);
  ctx.strokeRect(from + 1, barTop + 1, Math.max(2, to - from - 2), barHeight - 2);
  ctx.setLineDash([]);
  const x = u * w, tip = 0.4 * c.rem;
  ctx.fillStyle = c.new; ctx.fillRect(x - 1.25, 0, 2.5, height);
  ctx.beginPath(); ctx.moveTo(x - tip, 0); ctx.lineTo(x + tip, 0); ctx.lineTo(x, tip * 1.4); ctx.fill();
  const id = lab.sorted.order[lab.place], p = f.percent(result.weights[lab.place] / result.mass);
  const values = { seed: f.digits[0](lab.params.seed + Math.max(0, lab.thrown - 1)), step: lab.data.dice_step + 1, u: f.number(u, 4), token: label(lab, id), p };
  lab.dice.setAttribute("aria-label", t(text.dice_aria, values));
  const key = `${values.seed}|${values.u}|${id}|${p}`;
  if (lab.diceKey !== key) {
    lab.diceKey = key;
    lab.diceLine.replaceChildren(t(text.dice, values) + " ", chip({ ...(lab.names.get(id) ?? { text: "#" + id }) }, { phase: "new" }), " " + p);
  }
  paintDrawn(lab);
}

function diceLabel(lab, ctx, c, place, left, right, y) {
  const words = label(lab, lab.sorted.order[place]);
  if (ctx.measureText(words).width > right - left - 4) return;
  ctx.fillStyle = c.ink;
  ctx.fillText(words, (left + right) / 2, y);
}

function paintDrawn(lab) {
  lab.clear.hidden = lab.first.hidden = false;
  lab.clear.disabled = !lab.thrown; lab.first.disabled = lab.params.seed === 0;
  if (!lab.thrown) { set(lab.drawn, ""); return; }
  // Half the sum of all differences: the share of draws that lie in another token than the bars promise.
  let error = 0, seen = 0;
  for (const [place, times] of lab.counts) { const p = lab.result.weights[place] / lab.result.mass; error += Math.abs(times / lab.thrown - p); seen += p; }
  error = (error + Math.max(0, 1 - seen)) / 2;
  set(lab.drawn, t(lab.text.drawn_total, { n: lab.f.int(lab.thrown), distinct: lab.f.int(lab.counts.size), error: lab.f.percent(error) }));
}

/* ---- the strip of choices ---- */

function drawStrip(lab) {
  const { data, text, f } = lab, highest = Math.max(1, ...data.answer.map((a) => a.bits));
  const key = JSON.stringify([data.answer.length, data.logits_key.replace(/:.*$/, ""), data.lang]);
  if (lab.stripKey !== key) {
    lab.stripKey = key;
    lab.strip.replaceChildren(...data.answer.map((token, i) => h("button", {
      class: "choice", type: "button", role: "radio", dataset: { step: token.step }, onclick: () => choose(lab, token.step),
      "aria-label": t(text.strip_token, { i: i + 1, text: showToken(token.text, token.hex, token), bits: f.bits(token.bits) }),
      title: t(text.bits_short, { bits: f.bits(token.bits) }),
    }, h("span", { class: "doubt", style: { "--doubt": Math.min(1, token.bits / highest).toFixed(3) } }), chip(token, { phase: "decode" }))));
  }
  for (const node of lab.strip.children) {
    const on = +node.dataset.step === data.step;
    node.setAttribute("aria-checked", on);
    node.tabIndex = on ? 0 : -1;
    node.lastChild.className = "chip " + (on ? "phase-new" : "phase-decode");
  }
  lab.strip.setAttribute("aria-label", text.strip);
}

function choose(lab, step) {
  if (step === lab.data.step) return;
  lab.root.classList.add("stale");
  lab.send("step", step);
}

/** Arrow keys move between the choices, as in any radio group. */
function bindStrip(lab) {
  lab.strip.onkeydown = (event) => {
    const nodes = [...lab.strip.children], at = nodes.findIndex((node) => +node.dataset.step === lab.data.step);
    const to = { ArrowLeft: at - 1, ArrowUp: at - 1, ArrowRight: at + 1, ArrowDown: at + 1, Home: 0, End: nodes.length - 1 }[event.key];
    if (to === undefined || !nodes[to]) return;
    event.preventDefault();
    nodes[to].focus();
    choose(lab, +nodes[to].dataset.step);
  };
}

/* ---- presets ---- */

function drawPresets(lab) {
  if (!lab.logits) return;
  const { data, text, f } = lab, penaltyFree = lab.plainSorted ??= {};
  if (penaltyFree.key !== lab.key) { penaltyFree.key = lab.key; penaltyFree.value = penalised(lab.logits, lab.order, [], 1); penaltyFree.room = { weights: new Float64Array(lab.logits.length), cumulative: new Float64Array(lab.logits.length) }; }
  const { scores, order } = penaltyFree.value, u = uniform(lab.params.seed + Math.max(0, lab.thrown - 1), data.dice_step);
  lab.presets.replaceChildren(...data.presets.map(([name, settings]) => {
    const result = sample(scores, settings, penaltyFree.room), counts = lab.thrown ? counted(lab.sortedThrows, result) : null, place = placeUnder(result, u), id = order[place];
    const lines = Array.from({ length: 5 }, (_, i) => presetLine(lab, result, counts, order, i));
    return h("article", { class: "preset", "aria-label": text["preset_" + name] },
      h("h3", {}, text["preset_" + name]), h("p", { class: "note" }, settingWords(lab, settings)), ...lines,
      h("p", { class: "note" }, `${t(text.survivors_short, { n: f.int(result.survivors) })} · ${t(text.bits_short, { bits: f.bits(result.entropy) })}`),
      h("p", { class: "note pick" }, text.same_dice + " ", chip(lab.names.get(id) ?? { text: label(lab, id) }, { phase: "new" })),
      h("button", { class: "btn", type: "button", onclick: () => usePreset(lab, settings), "aria-label": `${text.use}: ${text["preset_" + name]}` }, text.use));
  }));
}

function presetLine(lab, result, counts, order, place) {
  const share = place < result.n ? result.weights[place] / result.mass : 0, track = h("div", { class: "track" }, h("u"), h("s"), h("i"));
  paintTrack(track, share, null, lab.thrown && place < result.n ? (counts?.get(place) ?? 0) / lab.thrown : null, 1);
  return h("div", { class: "mini" + (place < result.n ? "" : " out") }, h("code", {}, label(lab, order[place])), track, h("span", {}, place < result.n ? lab.f.percent(share) : "✗"));
}

function settingWords(lab, settings) {
  const words = [`${lab.text.temperature} ${lab.f.number(settings.temperature, 1)}`];
  for (const name of ["top_k", "top_p", "min_p"]) if (settings[name] !== STOPS[name].off) words.push(`${lab.text[name]} ${settings[name]}`);
  return words.join(" · ");
}

function usePreset(lab, settings) {
  lab.params = { ...lab.params, ...settings };
  showControls(lab);
  recompute(lab);
  commit(lab);
}

/* ---- words ---- */

function showControls(lab) {
  for (const name of RULES) { lab.sliders[name].input.value = nearest(STOPS[name].values, lab.params[name]); showValue(lab, name); }
}

function writeText(lab) {
  const { text, data, f } = lab;
  for (const name of RULES) set(lab.sliders[name].label, text[name]);
  ["token", "logit", "scaled", "kept", "probability"].forEach((name, i) => set(lab.head.children[i], text[name]));
  set(lab.after, t(text.after, { context: data.context, n: f.int(data.n_vocab) }));
  lab.legend.replaceChildren(
    h("span", {}, h("i", { class: "key-ghost" }), text.base), h("span", {}, h("i", { class: "key-drawn" }), text.drawn),
    h("span", {}, h("i", { class: "key-picked" }), text.picked), h("span", {}, h("i", { class: "key-run" }), text.chosen));
  set(lab.roll, text.roll); set(lab.first, text.first_seed); set(lab.clear, text.clear);
  set(lab.drawLabel, text.draw);
  lab.drawButtons.forEach((button, i) => { set(button, f.int(DRAWS[i])); button.setAttribute("aria-label", `${text.draw} ${f.int(DRAWS[i])}`); });
  set(lab.presetTitle, text.presets); set(lab.presetNote, text.presets_note);
  lab.controls.setAttribute("role", "group"); lab.controls.setAttribute("aria-label", text.order);
  lab.root.setAttribute("aria-label", text.aria); lab.root.setAttribute("role", "group");
  lab.diceKey = "";
  showControls(lab);
}

export default function (component) {
  const lab = instance(component.parentElement, build);
  update(lab, component);
}
